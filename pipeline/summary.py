"""What a run did, stage by stage: the records that runner, display and report share, and `summary.json`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.estimates import planned_costs
from pipeline.plan_types import Plan, PlannedStage
from pipeline.store import write_json

FINISHED = ("ran", "cached", "resumed")


@dataclass
class StageRecord:
    """One stage of this run. waiting -> (locked ->) running -> ran | cached | resumed | failed | skipped."""

    name: str
    kind: str
    fingerprint: str
    status: str = "waiting"
    seconds: float = 0.0  # in the stage's own `run`, earlier interrupted attempts included
    metrics: dict[str, Any] = field(default_factory=dict)
    error: str = ""  # one line
    folder: Path | None = None  # partial while it runs, sealed afterwards
    span: tuple[float, float] | None = None  # wall-clock begin and end of `run` in this run
    manifest: dict[str, Any] | None = None
    tracked: bool = False  # the tracker knows that it runs
    notes_shown: int = 0

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def shown(self) -> str:
        """The status as summary.json has it: what did not come to its end was skipped."""
        return self.status if self.finished or self.status == "failed" else "skipped"


def records_of(plan: Plan) -> dict[str, StageRecord]:
    """By name, as they are before a run: what lies beyond until= has no turn to wait for."""
    return {
        stage.name: StageRecord(stage.name, stage.kind, stage.fingerprint, "waiting" if stage.wanted else "skipped")
        for stage in plan.stages
    }


def overhead_seconds(wall: float, records: list[StageRecord]) -> float:
    """Wall time in which no stage was at work (spans may overlap)."""
    busy, reached = 0.0, 0.0
    for began, ended in sorted(record.span for record in records if record.span is not None):
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return max(0.0, wall - busy)


def write_summary(
    run_dir: Path,
    plan: Plan,
    records: list[StageRecord],
    status: str,
    wall: float,
    command: str,
    error: dict[str, str],
    gates: dict[str, str],
) -> None:
    """`status`: running | done | failed | interrupted. A stage that did not get its turn is skipped. `gates`: of which
    stages a gate that only warns does not hold, and why."""
    stages = []
    for record in records:
        row = {
            "name": record.name,
            "kind": record.kind,
            "fingerprint": record.fingerprint,
            "status": record.shown,
            "seconds": round(record.seconds, 3),
            "metrics": record.metrics,
        }
        if record.error:
            row["error"] = record.error
        if notes := read_notes(record.folder):
            row["notes"] = notes
        stages.append(row)
    summary = {
        "name": plan.name,
        "pipeline": plan.pipeline,
        "status": status,
        "seconds": round(wall, 3),
        "overhead_seconds": round(overhead_seconds(wall, records), 3),
        "command": command,
        "stages": stages,
    }
    told = {name: value for name, value in (("error", error), ("gates", gates)) if value}
    write_json(run_dir / "summary.json", summary | told)


def read_notes(folder: Path | None) -> list[str]:
    try:
        text = (folder / "notes.jsonl").read_text() if folder is not None else ""
    except FileNotFoundError:  # none were written, or the folder is just being published
        return []
    return [json.loads(line)["message"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """plan.json: `identity` tells whether another command means the same run."""
    return {
        "name": plan.name,
        "pipeline": plan.pipeline,
        "identity": [[stage.name, stage.fingerprint] for stage in plan.stages],
        "parallel": plan.parallel,
        "warnings": plan.warnings,
        "stages": [_stage_as_dict(stage) for stage in plan.stages],
    }


def _stage_as_dict(stage: PlannedStage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "fingerprint": stage.fingerprint,
        "inputs": {port: source.wired for port, source in stage.inputs.items()},
        "cached": stage.cached,
        "forced": stage.forced,
        "wanted": stage.wanted,
        "evaluates": stage.evaluates,
        "ranks": stage.ranks,
        "threads": stage.threads,
        "engine": dataclasses.asdict(stage.cfg.engine),
        "parameters": stage.outline.parameters,
        "steps": stage.outline.steps,
        "tokens": stage.outline.tokens,
        "costs": planned_costs(stage),
    }
