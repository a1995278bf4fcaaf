"""What in a store may go: results that no run needs, replaced ones, and what crashes left behind.

A run needs what its plan names (also while it goes on: plan.json stands before anything is used) and what its folder
links to. A run is a folder below output_dir with a plan.json; remove it, and its results may go. What is being built is
never touched. Between looking and removing a new run may have come: a result is first moved aside in one step, then the
runs are looked at again, and it is put back where one needs it now; a run that comes later finds it missing and
computes it again, as it would any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import Fault, Interrupted
from pipeline.lineage import lineage_of
from pipeline.messages import Refused
from pipeline.store import LINEAGE, MANIFEST, is_locked, locked, retire

SKIPPED = ("store", "stages", "wandb")  # folders below output_dir that hold no runs


@dataclass
class Item:
    """One folder of the store, and what is to become of it."""

    folder: Path
    what: str  # for people
    size: int  # bytes
    keep: str = ""  # why it stays; "": it may go
    unless_needed: bool = False  # it goes because no run needs it: to be looked at again before it does


def survey(output_dir: Path, unfinished: bool = False, keep: list[str] | None = None) -> list[Item]:
    """Everything in the store. `unfinished`: give up what a run would resume; `keep`: names of results that stay.
    Raises Refused."""
    store = output_dir / "store"
    if not store.is_dir():
        raise Refused(
            [Fault(str(output_dir), "has no store", "write --output-dir FOLDER, the output_dir of your runs")]
        )
    needed = needed_by(output_dir)
    for name in keep or []:
        if not (store / Path(name).name).is_dir():
            raise Refused([Fault("--keep", f"there is no '{name}' in {store}", "name a folder of the store")])
        needed.setdefault(Path(name).name, []).append("--keep")
    items = [_result(entry, needed) for entry in sorted(store.glob("*-*")) if entry.is_dir()]
    items += [_partial(folder, needed, unfinished) for folder in sorted(store.glob(".partial/*")) if folder.is_dir()]
    items += [Item(path, "replaced by a rebuild", size_of(path)) for path in sorted(store.glob(".old/*"))]
    return items


def needed_by(output_dir: Path) -> dict[str, list[str]]:
    """<kind>-<fingerprint> -> the runs that need it. Raises Refused where a run cannot be read."""
    found: dict[str, list[str]] = {}
    leaning: dict[str, set[str]] = {}  # looked up once, for all runs
    for run in runs_below(output_dir):
        names = _needs(run, output_dir / "store")
        for name in names - leaning.keys():
            leaning[name] = _leans_on(output_dir / "store" / name, output_dir / "store")
        for name in sorted(names.union(*(leaning[name] for name in names))):
            found.setdefault(name, []).append(str(run.relative_to(output_dir)))
    return found


def runs_below(output_dir: Path) -> Iterator[Path]:
    for folder, children, files in os.walk(output_dir):
        children[:] = [name for name in children if name not in SKIPPED]
        if "plan.json" in files:
            yield Path(folder)


def remove(item: Item, output_dir: Path) -> bool:
    """Remove what `survey` found superfluous; False: it is in use by now, and stays."""
    store, name = output_dir / "store", item.folder.name
    if item.folder.parent.name == ".old":
        with contextlib.suppress(FileNotFoundError):  # somebody else collects too
            shutil.rmtree(item.folder)
        return True
    kind, _, fingerprint = name.rpartition("-")
    at_once = threading.Event()
    at_once.set()  # do not wait for whoever holds it
    try:
        with locked(store, kind, fingerprint, lambda _: None, at_once):
            if not item.folder.exists() or is_locked(item.folder / "workers.lock"):
                return False
            aside = retire(store, item.folder)
            if item.unless_needed and name in needed_by(output_dir):
                aside.rename(item.folder)
                return False
            shutil.rmtree(aside)
            return True
    except Interrupted:
        return False


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _needs(run: Path, store: Path) -> set[str]:
    try:
        stages: list[dict[str, Any]] = json.loads((run / "plan.json").read_text())["stages"]
    except (ValueError, KeyError) as error:
        remedy = "remove that run's folder, or bring the file back; until then nothing is removed"
        raise Refused([Fault(str(run / "plan.json"), "cannot be read", remedy)]) from error
    names = {f"{stage['kind']}-{stage['fingerprint']}" for stage in stages if stage.get("wanted", True)}
    names |= {path.resolve().name for path in (run / "stages").glob("*")}
    wired = [wired for stage in stages for wired in stage["inputs"].values() if wired]
    paths = [Path(one.removeprefix("path:")).expanduser() for one in wired if one.startswith("path:")]
    return names | {name for path in paths if (name := entry_of(path, store))}


def entry_of(path: Path, store: Path) -> str | None:
    """The result of this store that a path leads into."""
    real, top = path.resolve(), store.resolve()
    return real.relative_to(top).parts[0] if top in real.parents else None


def _leans_on(entry: Path, store: Path) -> set[str]:
    """Other results whose files a result names: the base of an adapter, a model or data that its config reads."""
    paths: list[str] = []
    for folder in sorted(file.parent for file in entry.glob(f"*/{LINEAGE}"))[:1]:  # all outputs say the same
        lineage = lineage_of(folder)
        paths += [origin.wired for origin in lineage.own.files.values()] if lineage is not None else []
    for file in entry.glob("*/adapter_config.json"):
        paths.append(json.loads(file.read_text()).get("base_model_name_or_path") or "")
    return {name for path in paths if path and (name := entry_of(Path(path), store))}


def _result(entry: Path, needed: dict[str, list[str]]) -> Item:
    if not (entry / MANIFEST).exists():
        return Item(entry, "no result", size_of(entry), keep="it has no artifact.json: nothing that was made here")
    manifest = json.loads((entry / MANIFEST).read_text())
    item = Item(entry, f"{manifest['stage']}, made {manifest['created'][:10]}", size_of(entry), unless_needed=True)
    if is_locked(entry.parent / ".locks" / entry.name):
        item.keep = "in use"
    elif entry.name in needed:
        item.keep = f"needed by {_several(needed[entry.name])}"
    return item


def _partial(folder: Path, needed: dict[str, list[str]], unfinished: bool) -> Item:
    """A stage that did not come to its end: worth keeping where there is something to resume, and a run that would."""
    steps = sorted(path.name for path in folder.glob("checkpoints/step-*"))
    job = json.loads((folder / "job.json").read_text()) if (folder / "job.json").exists() else {}
    stage = job.get("stage", "a stage")
    sealed = (folder / MANIFEST).exists()
    what = (
        f"{stage}, stopped at step {int(steps[-1].removeprefix('step-'))}" if steps else f"{stage}, nothing to resume"
    )
    item = Item(folder, f"{stage}, finished and not put in place" if sealed else what, size_of(folder))
    if is_locked(folder.parent.parent / ".locks" / folder.name) or is_locked(folder / "workers.lock"):
        item.keep = "in use"
    elif (steps or sealed) and folder.name in needed and not unfinished:
        item.keep = f"{_several(needed[folder.name])} would go on from it; --unfinished gives it up"
    item.unless_needed = bool(steps or sealed) and not unfinished
    return item


def _several(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
