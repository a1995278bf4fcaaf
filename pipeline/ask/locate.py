"""From a path or a name, as people write it, to the thing it means: a result, one of its outputs, or a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import Fault
from pipeline.lineage import Lineage, lineage_of
from pipeline.messages import Refused, nearest, suggest
from pipeline.store import MANIFEST

OUTPUTS = Path("outputs")


@dataclass
class Subject:
    """A result or an output of one, with what is known of it."""

    written: str  # as it was asked for
    folder: Path  # of the output, or of the whole result
    lineage: Lineage
    entry: Path | None  # the result in its store; None: the folder was moved elsewhere
    manifest: dict[str, Any]  # of the entry; {} where there is none

    @property
    def store(self) -> Path | None:
        return self.entry.parent if self.entry is not None else None

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """The outputs that are asked about: one, or all of a whole result."""
        made, port = self.lineage.own.outputs, self.lineage.output
        return {port: made[port]} if port else made


def subject_at(written: str) -> Subject:
    """A store entry, a run's stages/<stage>, an output's folder, or one that was moved elsewhere. Raises Refused."""
    folder = existing(written)
    if is_run(folder):
        names = stages_of(folder)
        remedy = f"name one of its stages: {folder / 'stages' / names[-1]}" if names else "name a result in a store"
        raise refused(written, "is a whole run", f"{remedy} (there are: {', '.join(names) or 'none yet'})")
    lineage = lineage_of(folder)
    if lineage is None:
        problem = "holds neither a lineage.json nor a result of a store"
        raise refused(written, problem, "name outputs/runs/RUN/stages/STAGE, or the folder of an output in it")
    real = folder.resolve()
    places = [place for place in (real, real.parent) if (place / MANIFEST).exists()]
    entry = places[0] if places else None
    manifest = json.loads((entry / MANIFEST).read_text()) if entry is not None else {}
    return Subject(written, folder, lineage, entry, manifest)


def model_folder(written: str) -> Path:
    """The folder of a model: named itself, or as the result that made it. Raises Refused."""
    folder = existing(written)
    if (folder / MANIFEST).exists():
        outputs = json.loads((folder / MANIFEST).read_text())["outputs"]
        models = [output["path"] for output in outputs.values() if output["kind"] == "model"]
        if not models:
            kinds = ", ".join(f"{name} ({output['kind']})" for name, output in outputs.items())
            raise refused(written, f"has no language model, but {kinds}", "name a stage that makes one")
        return folder / models[0]
    if not (folder / "config.json").exists() and not (folder / "adapter_config.json").exists():
        remedy = f"name one of its stages: {folder / 'stages' / 'STAGE'}" if is_run(folder) else "name a model's folder"
        raise refused(written, "is no model: it has no config.json", remedy)
    return folder


def run_at(written: str, outputs: Path = OUTPUTS) -> Path:
    """A run by its folder, or by its name among the runs and the sweeps of `outputs`. Raises Refused."""
    for folder in (Path(written), outputs / "runs" / written, outputs / "sweeps" / written):
        if is_run(folder):
            return folder
    if Path(written).exists():
        raise refused(written, "is no run: it has no plan.json", "name a folder below outputs/runs")
    known = sorted(path.parent.name for path in (outputs / "runs").glob("*/plan.json"))
    remedy = suggest(written, known) if known else f"name the folder of a run; there is none in {outputs / 'runs'}"
    raise refused(written, "there is no such run", remedy)


def is_run(folder: Path) -> bool:
    return (folder / "plan.json").exists() and not (folder / MANIFEST).exists()


def stages_of(run: Path) -> list[str]:
    """Stages of a run that have a result, in the order of its plan, evaluations left out."""
    planned = [stage["name"] for stage in json.loads((run / "plan.json").read_text())["stages"]]
    return [name for name in planned if (run / "stages" / name / MANIFEST).exists() and not name.endswith(".eval")]


def models_of(run: Path) -> dict[str, Path]:
    """stage -> the folder of the model that it made, in the order of the plan."""
    found = {}
    for name in stages_of(run):
        folder = run / "stages" / name
        outputs = json.loads((folder / MANIFEST).read_text())["outputs"].values()
        paths = [output["path"] for output in outputs if output["kind"] == "model"]
        if paths:
            found[name] = folder / paths[0]
    return found


def existing(written: str) -> Path:
    """The path, if it is there; else a refusal that names the nearest that is."""
    path = Path(written).expanduser()
    if path.exists():
        return path
    there = next(parent for parent in [*path.parents, Path("/")] if parent.exists())
    missing = path.relative_to(there).parts[0] if there != Path("/") or path.is_absolute() else str(path)
    close = nearest(missing, [child.name for child in there.iterdir()]) if there.is_dir() else None
    remedy = f"write {there / close / Path(*path.relative_to(there).parts[1:])}" if close else "name one that is there"
    raise refused(written, f"there is no '{missing}' in {there}", remedy)


def refused(written: str, problem: str, remedy: str) -> Refused:
    return Refused([Fault(written, problem, remedy)])
