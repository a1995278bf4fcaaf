"""Finished runs of `note` stages, which write data sets: made in seconds, and without a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import LauncherConfig, RunConfig
from pipeline.fingerprint import fingerprint
from pipeline.kinds import Kind
from pipeline.plan_types import Plan, PlannedStage, Source
from pipeline.runner import execute
from pipeline.sources import Digests
from tests.pipeline.kinds.note import config as head

KIND = Kind("note", head.NoteConfig, head.INPUTS, head.OUTPUTS, head.RECIPE_VERSION, head.outline)


@dataclass
class Notes:
    """A run under `root`, stage by stage."""

    root: Path
    name: str = "run"
    stages: list[PlannedStage] = field(default_factory=list)

    def add(self, name: str, forced: bool = False, inputs: dict[str, str] | None = None, **fields) -> PlannedStage:
        """A stage; `inputs` are wired as in a pipeline: "first.rows", "path:dir"."""
        cfg = head.NoteConfig(inputs=dict(inputs or {}), **fields)
        digests = Digests.of_store(self.root / "store")
        sources = {port: self._source(port, wired, digests) for port, wired in cfg.inputs.items()}
        key = fingerprint(KIND, cfg, sources, digests)
        outline = head.outline(cfg, {})
        self.stages.append(PlannedStage(name, "note", cfg, sources, key, False, outline, 1, 1, forced=forced))
        return self.stages[-1]

    def run(self) -> int:
        plan = Plan(self.name, "notes", self.root / "store", self.stages)
        cfg = RunConfig(name=self.name, output_dir=str(self.root), launcher=LauncherConfig(kind="inline"))
        return execute(plan, cfg, self.folder, [f"name={self.name}"])

    @property
    def folder(self) -> Path:
        return self.root / "runs" / self.name

    def result(self, stage: str) -> Path:
        return self.folder / "stages" / stage

    def _source(self, port: str, wired: str, digests: Digests) -> Source:
        if wired.startswith("path:"):
            path = Path(wired.removeprefix("path:"))
            digest = digests.of(path)
            return Source(port, "dataset:conversations", wired, digest[:16], path=path, digest=digest)
        maker, _, output = wired.partition(".")
        made = next(stage for stage in self.stages if stage.name == maker)
        return Source(port, "dataset:conversations", wired, made.fingerprint, stage=maker, output=output)


def chain(root: Path, name: str = "run", last: str = "last", **first) -> Notes:
    """first -> middle -> last, and last reads first too."""
    notes = Notes(root, name)
    notes.add("first", **{"text": "first", **first})
    notes.add("middle", text="middle", inputs={"before": "first.rows"})
    notes.add("last", text=last, inputs={"before": "middle.rows", "beside": "first.rows"})
    return notes
