"""Checkpoints for resuming a stage: everything, written atomically, two kept, checked by digest before use.

Resume is not the hand-off: the next stage gets weights alone. A checkpoint is a folder `step-00000050/` that was
renamed into place after its manifest, so a folder with a manifest that matches is whole, and nothing else is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context
from stages.parts.policy.distributed import barrier, gather_objects

KEPT = 2
MANIFEST = "checkpoint.json"
TENSORS = "stage.safetensors"


class Restorable(Protocol):
    """A train engine, or several under one name. All ranks call together."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


def save_checkpoint(
    context: Context, step: int, engine: Restorable, state: dict[str, Any], tensors: dict[str, Tensor] | None = None
) -> None:
    """After `step` optimizer steps. `state` is JSON-able: data cursor, counters, rollout state; rank 0's is kept.
    `tensors`: weights of the stage beside the engine's (a reference that was reset), the same on every rank.

    All ranks call. Holds weights, optimizer, counters, RNG states of each rank, sizes of the metric files.
    """
    folder = context.checkpoints / f"step-{step:08d}"
    draft = context.checkpoints / f".draft-{step:08d}"
    if context.is_main:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    barrier()
    engine.save(draft)
    if tensors and context.is_main:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, draft / TENSORS)
    torch.save(_rng_states(), draft / f"rng-{context.rank}.pt")
    barrier()
    files = sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())
    mine = files[context.rank :: context.world_size]
    digests = dict(gather_objects([(name, _digest(draft / name)) for name in mine]))
    if context.is_main:
        manifest = {
            "step": step,
            "world_size": context.world_size,
            "files": dict(sorted(digests.items())),
            "offsets": context.metrics_offset(),
            "state": state,
        }
        _write(draft / MANIFEST, json.dumps({**manifest, "digest": _manifest_digest(manifest)}))
        shutil.rmtree(folder, ignore_errors=True)
        draft.replace(folder)
        _sync(context.checkpoints)
        for old in _folders(context)[:-KEPT]:
            shutil.rmtree(old)
    barrier()


def load_checkpoint(context: Context, engine: Restorable) -> tuple[int, dict[str, Any]] | None:
    """(step, state) of the newest undamaged checkpoint, loaded into `engine`; None where there is none.

    Cuts the metric files back to where they stood, restores RNG states (same number of ranks), and says what it did.
    Raises StageFailed where checkpoints exist and all are damaged: starting over is a decision for people.
    """
    candidates = _folders(context)[::-1]
    for folder in candidates:
        manifest, damage = _check(folder)
        # Every rank reads the same files; they agree before any of them loads.
        damage = next((found for found in gather_objects([damage]) if found), "")
        if damage:
            context.note(f"checkpoint {folder.name} is damaged ({damage}): using the one before it")
            continue
        engine.load(folder)
        if manifest["world_size"] == context.world_size:
            _restore_rng(torch.load(folder / f"rng-{context.rank}.pt", weights_only=True))
        context.rewind(manifest["offsets"])
        barrier()
        context.note(f"resumed from step {manifest['step']}" + _of_ranks(manifest["world_size"], context.world_size))
        return manifest["step"], manifest["state"]
    if candidates:
        raise StageFailed(f"every checkpoint in {context.checkpoints} is damaged; delete the folder to start over")
    context.rewind({})
    return None


def checkpoint_tensors(context: Context, step: int) -> dict[str, Tensor]:
    """The `tensors` of the checkpoint that `load_checkpoint` has just loaded; {} where it has none."""
    path = context.checkpoints / f"step-{step:08d}" / TENSORS
    return load_file(path) if path.exists() else {}


def _check(folder: Path) -> tuple[dict[str, Any], str]:
    """The manifest, and what is wrong with the folder ("" if nothing)."""
    path = folder / MANIFEST
    if not path.exists():
        return {}, "no manifest"
    try:
        manifest = json.loads(path.read_text())
    except ValueError:
        return {}, f"{MANIFEST} is not JSON"
    if manifest.pop("digest", None) != _manifest_digest(manifest):
        return {}, f"{MANIFEST} does not match its digest"
    for name, digest in manifest["files"].items():
        if not (folder / name).exists():
            return {}, f"{name} is missing"
        if _digest(folder / name) != digest:
            return {}, f"{name} does not match its digest"
    return manifest, ""


def _folders(context: Context) -> list[Path]:
    """Oldest first. Drafts that a kill left behind do not count."""
    return sorted(context.checkpoints.glob("step-*"))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _manifest_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _of_ranks(then: int, now: int) -> str:
    return "" if then == now else f", written by {then} ranks and read by {now}"


def _rng_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    version, numbers, gauss = random.getstate()
    states["python"] = [version, list(numbers), gauss]
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_rng(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
