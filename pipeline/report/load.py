"""What the report knows of a run, read from the files that the design fixes. Missing files are missing, not errors:
a run may have stopped anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

MODELS = ("model", "reward_model")


@dataclass(frozen=True)
class SourceView:
    """What one input port reads."""

    port: str
    wired: str  # as the pipeline says it
    stage: str  # of this run; "" for an external source
    is_model: bool


@dataclass
class StageView:
    """One stage of a run. Large files are read when a section asks for them."""

    name: str
    kind: str
    status: str  # ran | cached | resumed | failed | skipped | ...
    seconds: float
    metrics: dict[str, float | None]
    error: str
    path: Path  # the linked result, or where it would be
    planned: dict[str, Any]  # this stage in plan.json
    artifact: dict[str, Any]  # its manifest; {} where it was not sealed
    sources: list[SourceView] = field(default_factory=list)  # in the order of the ports

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """metrics.jsonl"""
        return list(read_rows(self.path / "metrics.jsonl"))

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """samples.jsonl: responses that the stage showed while it ran."""
        return list(read_rows(self.path / "samples.jsonl"))

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """results.jsonl of an evaluation: problem_id, suite, family, n, c."""
        return list(read_rows(self.path / "results" / "results.jsonl"))

    def rates(self, suite: str) -> dict[str, float]:
        """Of an evaluation: problem -> share of its judged responses that were right."""
        return {row["problem_id"]: row["c"] / row["n"] for row in self.results if row["suite"] == suite and row["n"]}

    @property
    def computed_seconds(self) -> float:
        """What it took when it was computed, cached now or not."""
        return self.artifact.get("seconds") or self.seconds

    def responses(self) -> Iterator[dict[str, Any]]:
        """Every response of an evaluation."""
        return read_rows(self.path / "responses" / "train.jsonl")

    @property
    def input_model(self) -> str:
        """The stage whose model this one starts from; "" where there is none."""
        return next((source.stage for source in self.sources if source.stage and source.is_model), "")


@dataclass
class RunView:
    """A run as the report tells it."""

    name: str
    pipeline: str
    status: str
    seconds: float
    overhead_seconds: float
    command: str
    error: dict[str, str]  # stage and message of what stopped the run; {} where nothing did
    warnings: list[str]
    stages: list[StageView] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[str, StageView]:
        return {stage.name: stage for stage in self.stages}

    @property
    def main_stages(self) -> list[StageView]:
        """The stages of the recipe, without the evaluations derived from them."""
        return [stage for stage in self.stages if not stage.name.endswith(".eval")]

    def evaluation(self, stage: str) -> StageView | None:
        """The evaluation of a stage's model, if it has results."""
        view = self.by_name.get(f"{stage}.eval")
        return view if view is not None and view.results else None


def load_run(run_dir: Path) -> RunView:
    summary = read_json(run_dir / "summary.json")
    plan = read_json(run_dir / "plan.json")
    planned = {stage["name"]: stage for stage in plan.get("stages", [])}
    told = {stage["name"]: stage for stage in summary.get("stages", [])}
    names = [*planned, *(name for name in told if name not in planned)]
    stages = [_stage(run_dir, name, told.get(name, {}), planned.get(name, {})) for name in names]
    artifacts = {stage.name: stage.artifact for stage in stages}
    for stage in stages:
        wired = stage.planned.get("inputs", {})
        stage.sources = [_source(port, source, artifacts) for port, source in wired.items() if source]
    return RunView(
        name=summary.get("name", run_dir.name),
        pipeline=summary.get("pipeline", plan.get("pipeline", "")),
        status=summary.get("status", "unfinished"),
        seconds=summary.get("seconds") or 0.0,
        overhead_seconds=summary.get("overhead_seconds") or 0.0,
        command=summary.get("command", ""),
        error=summary.get("error", {}),
        warnings=plan.get("warnings", []) + [f"{name}: gate: {why}" for name, why in summary.get("gates", {}).items()],
        stages=stages,
    )


def _stage(run_dir: Path, name: str, told: dict[str, Any], planned: dict[str, Any]) -> StageView:
    path = run_dir / "stages" / name
    artifact = read_json(path / "artifact.json")
    return StageView(
        name=name,
        kind=told.get("kind") or planned.get("kind", ""),
        status=told.get("status", "not reached"),
        seconds=told.get("seconds") or 0.0,
        metrics=told.get("metrics") or artifact.get("metrics") or {},
        error=told.get("error", ""),
        path=path,
        planned=planned,
        artifact=artifact,
    )


def _source(port: str, wired: str, artifacts: dict[str, dict[str, Any]]) -> SourceView:
    """`stage.output`, or something external. What was not made yet is told by the name of the output."""
    stage, _, output = wired.rpartition(".")
    if stage not in artifacts:
        return SourceView(port, wired, "", False)
    made = artifacts[stage].get("outputs", {}).get(output, {})
    return SourceView(port, wired, stage, made.get("kind", output) in MODELS)


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a JSON-lines file; the last one may be half written."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
