"""One stage with its inputs in hand, for scripts that look at a stage without running it.

What the stage needs is taken from the store, or run first exactly as run.py would run it; the stage itself is not.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import compose, store
from pipeline.artifacts import Artifact, Fault
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan
from pipeline.plan_types import Plan, PlannedStage, Source


@dataclass
class Prepared:
    """A planned stage and the artifacts that the runner would hand to it."""

    cfg: RunConfig
    stage: PlannedStage
    inputs: dict[str, Artifact]


def prepare(name: str, overrides: list[str]) -> Prepared:
    """Compose `overrides`, see that the inputs of stage `name` are sealed, and return them. Raises Refused; exits with
    the run's status where a stage before it fails."""
    cfg = compose.compose(overrides)
    plan = make_plan(cfg, overrides)
    names = [stage.name for stage in plan.stages]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise Refused(
            [Fault("--stage", f"{name} is not in this plan", f"write {near[0] if near else ', '.join(names)}")]
        )
    needed = _before(plan, name)
    if not all(plan.stage(one).cached for one in needed):
        _run_first(name, plan, cfg, needed, overrides)
    stage = plan.stage(name)
    outside: Any = importlib.import_module("stages.parts.outside")  # what a rank does first
    inputs = outside.at_hand({port: _artifact(port, source, plan) for port, source in stage.inputs.items()})
    return Prepared(cfg, stage, inputs)


def _before(plan: Plan, name: str) -> set[str]:
    found: set[str] = set()
    for source in plan.stage(name).inputs.values():
        if source.stage is not None:
            found |= {source.stage} | _before(plan, source.stage)
    return found


def _run_first(name: str, plan: Plan, cfg: RunConfig, needed: set[str], overrides: list[str]) -> None:
    from pipeline.runner import execute

    for stage in plan.stages:
        stage.wanted = stage.name in needed
    plan.name = f"{cfg.name}.before_{name}"  # beside the run itself, whose record stays as it is
    status = execute(plan, cfg, Path(cfg.output_dir) / "runs" / plan.name, overrides)
    if status:
        raise SystemExit(status)


def _artifact(port: str, source: Source, plan: Plan) -> Artifact:
    if source.stage is None:
        assert source.path is not None and source.digest is not None
        return Artifact(port, source.kind, source.path, source.facts, source.fingerprint, source.digest)
    producer = plan.stage(source.stage)
    manifest = store.read_manifest(plan.store, producer.kind, producer.fingerprint)
    assert manifest is not None and source.output is not None
    output = manifest["outputs"][source.output]
    folder = store.entry_path(plan.store, producer.kind, producer.fingerprint)
    facts = {key: value for key, value in output.items() if key not in ("kind", "path", "digest")}
    return Artifact(port, source.kind, folder / output["path"], facts, source.fingerprint, output["digest"])
