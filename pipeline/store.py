"""The store: sealed results under content fingerprints, and the only place that knows how they get there.

    store/<kind>-<fingerprint>/             sealed: it exists with artifact.json, or it does not exist
    store/.partial/<kind>-<fingerprint>/    being built; survives a crash, so that the stage can resume
    store/.locks/<kind>-<fingerprint>       flock of whoever builds it; the kernel releases it with its process
    store/.old/<kind>-<fingerprint>.<n>/    replaced by a forced rebuild, kept until collected

Unlike a cache keyed by existence, an entry counts only while the digests of its inputs, as recorded when it was
built, are those of today's inputs: a rebuilt producer with other weights makes its readers run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.artifacts import Interrupted

MANIFEST = "artifact.json"
LINEAGE = "lineage.json"  # in an output: how it came about (lineage.py). No part of its content, and of no digest
LOCK_POLL_SECONDS = 0.2
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# What the driver and the ranks tell each other in the partial folder; never part of a result.
SCRATCH = (
    *("job.json", "result.json", "progress.json", "progress.json.tmp", "workers.lock"),
    *("rendezvous", "stop", "hostfile", "launch.sh"),
)


def entry_path(store: Path, kind: str, fingerprint: str) -> Path:
    return store / f"{kind}-{fingerprint}"


def partial_path(store: Path, kind: str, fingerprint: str) -> Path:
    return store / ".partial" / f"{kind}-{fingerprint}"


def read_manifest(store: Path, kind: str, fingerprint: str) -> dict[str, Any] | None:
    """The manifest of a sealed result; None where there is none that can be read, or where somebody removed one of its
    outputs: the stage then runs again, and what lies there goes to .old."""
    entry = entry_path(store, kind, fingerprint)
    manifest = _read_manifest(entry)
    if manifest is None:
        return None
    intact = all((entry / output["path"]).exists() for output in manifest["outputs"].values())
    return manifest if intact else None


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Written in one piece and last, so a file that cannot be read was damaged from outside."""
    try:
        return json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, ValueError):
        return None


def is_current(manifest: dict[str, Any], input_digests: dict[str, str]) -> bool:
    """Whether a sealed result was built from exactly these inputs (port -> digest)."""
    return {port: source["digest"] for port, source in manifest["inputs"].items()} == input_digests


def digest_folder(folder: Path) -> str:
    """sha256 over the relative names and contents of all files below `folder`; independent of times and order, and of
    the lineage beside the content: the same weights are the same, whatever commit they were made at."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / LINEAGE):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def read_yaml(path: Path) -> Any:
    """By libyaml where PyYAML has it: ten times as fast, and every start and end of a stage reads configurations."""
    return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def write_json(path: Path, value: Any) -> None:
    """Readers see the old file or the new one, never a part; a full disk leaves the old one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("w") as file:
            file.write(json.dumps(value, indent=2, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(
    store: Path, kind: str, fingerprint: str, waiting: Callable[[str], None], stop: threading.Event
) -> Iterator[None]:
    """Hold an entry for building. `waiting` is told once, by whom it is held; a stop request ends the wait."""
    path = store / ".locks" / f"{kind}-{fingerprint}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        told = False
        while not _try_lock(file.fileno(), fcntl.LOCK_EX):
            if not told:
                file.seek(0)
                waiting(file.read().strip() or "another run")
                told = True
            if stop.wait(LOCK_POLL_SECONDS):
                raise Interrupted("stopped while waiting for another run")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}")
        file.flush()
        yield  # closing the file releases it, and so does the death of this process


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody holds this lock file now. Writes nothing."""
    if not path.exists():
        return False
    with path.open("r+") as file:
        return not _try_lock(file.fileno(), fcntl.LOCK_EX)


@contextlib.contextmanager
def rank_at_work(partial: Path) -> Iterator[None]:
    """Held by every rank while it lives, so that the ranks of a killed driver never write beside those of a new one."""
    with (partial / "workers.lock").open("a") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        yield


def await_ranks(partial: Path, seconds: float = 30.0) -> None:
    """Return once no rank of an earlier driver is at work in `partial` (they die with it, within moments)."""
    deadline = time.monotonic() + seconds
    with (partial / "workers.lock").open("a") as file:
        while not _try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "ranks of an earlier run still work in", str(partial))
            time.sleep(0.05)


def open_partial(
    store: Path, kind: str, fingerprint: str, inputs: dict[str, str], ports: list[str]
) -> tuple[Path, bool]:
    """The folder to build in, and whether there are checkpoints to resume from. Call it under the entry's lock.

    Only checkpoints survive from an earlier attempt, with the records that they can cut back: half-written outputs
    are removed, and everything is where an input has changed since.
    """
    partial = partial_path(store, kind, fingerprint)
    partial.mkdir(parents=True, exist_ok=True)
    await_ranks(partial)
    checkpoints = partial / "checkpoints"
    if not (checkpoints.is_dir() and any(checkpoints.iterdir())) or _earlier_inputs(partial) != inputs:
        shutil.rmtree(partial)
        partial.mkdir()
        return partial, False
    clear_scratch(partial, keep=("job.json", "progress.json"))
    for port in ports:
        shutil.rmtree(partial / port, ignore_errors=True)
    return partial, True


def _earlier_inputs(partial: Path) -> dict[str, str] | None:
    path = partial / "job.json"
    if not path.exists():
        return None
    return {port: source["digest"] for port, source in json.loads(path.read_text())["inputs"].items()}


def unfinished(store: Path, kind: str, fingerprint: str) -> tuple[int, str] | None:
    """What a stage would resume from: the step of its newest checkpoint, and the fingerprint of the recipe that wrote
    it; None where there is no checkpoint. For the plan, which only reads."""
    partial = partial_path(store, kind, fingerprint)
    steps = sorted(path.name for path in partial.glob("checkpoints/step-*"))
    if not steps or not (partial / "job.json").exists():
        return None
    writer = json.loads((partial / "job.json").read_text()).get("fingerprint") or fingerprint  # old ones do not say
    return int(steps[-1].removeprefix("step-")), writer


def clear_scratch(partial: Path, keep: tuple[str, ...] = ()) -> None:
    for path in [partial / name for name in SCRATCH] + sorted(partial.glob("failure-*.json")):
        if path.name not in keep:
            path.unlink(missing_ok=True)


def seal(partial: Path, manifest: dict[str, Any]) -> None:
    """Everything to disk, then the manifest, whose existence means "complete". Checkpoints are dropped after it."""
    for path in partial.rglob("*"):
        if path.is_file() and partial / "checkpoints" not in path.parents:
            _sync(path)
    write_json(partial / MANIFEST, manifest)
    _sync(partial)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(store: Path, kind: str, fingerprint: str) -> Path:
    """Move a sealed partial folder to its place, in one step; what was there goes to .old."""
    partial, entry = partial_path(store, kind, fingerprint), entry_path(store, kind, fingerprint)
    shutil.rmtree(partial / "checkpoints", ignore_errors=True)
    clear_scratch(partial)
    if entry.exists():
        _exchange(partial, entry)
        retire(store, partial)
    else:
        partial.rename(entry)
    _sync(store)
    return entry


def finish_earlier(store: Path, kind: str, fingerprint: str, inputs: dict[str, str], rebuild: bool) -> bool:
    """Deal with a partial folder that was sealed but not published when its driver died; True: published now.

    A sealed partial that is older than the entry is what a rebuild has just replaced: it goes to .old, and so does
    one that was built from other inputs.
    """
    partial, entry = partial_path(store, kind, fingerprint), entry_path(store, kind, fingerprint)
    if not (partial / MANIFEST).exists():
        return False
    sealed, old = _read_manifest(partial), _read_manifest(entry)
    if sealed is None:
        (partial / MANIFEST).unlink()
        return False
    missing = old is None or not is_current(old, inputs)
    newer = old is None or sealed["created"] > old["created"]
    if is_current(sealed, inputs) and newer and (missing or rebuild):
        publish(store, kind, fingerprint)
        return True
    retire(store, partial)
    return False


def retire(store: Path, folder: Path) -> Path:
    """Keep a replaced result under .old, numbered."""
    (store / ".old").mkdir(exist_ok=True)
    number = 1
    while (target := store / ".old" / f"{folder.name}.{number}").exists():
        number += 1
    folder.rename(target)
    return target


def _exchange(first: Path, second: Path) -> None:
    """Swap two folders so that no reader ever misses one: renameat2, in glibc since 2.28, on local file systems."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(first), os.fsencode(second)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot swap {first} and {second}: {os.strerror(code)}")
