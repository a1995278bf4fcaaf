"""Plans of `count` stages, made by hand. Run as a program it executes one in a process of its own."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from pipeline.config import LauncherConfig, RunConfig
from pipeline.plan_types import Plan, PlannedStage, Source
from tests.pipeline.kinds.count.config import CountConfig, outline

RECIPE_FIELDS = ("steps", "start", "value", "seed")


def planned(
    name: str, before: PlannedStage | None = None, ranks: int = 1, forced: bool = False, **fields
) -> PlannedStage:
    """One stage; `before` is wired to its input port."""
    cfg = CountConfig(**fields)
    inputs = {}
    if before is not None:
        wired = f"{before.name}.total"
        inputs["before"] = Source("before", "metrics", wired, before.fingerprint, stage=before.name, output="total")
    recipe = [{key: getattr(cfg, key) for key in RECIPE_FIELDS}, [one.fingerprint for one in inputs.values()]]
    fingerprint = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    return PlannedStage(name, "count", cfg, inputs, fingerprint, False, outline(cfg, {}), 1, ranks, forced=forced)


def plan_of(root: Path, *stages: PlannedStage, name: str = "run", parallel: int = 1) -> Plan:
    return Plan(name, "counting", root / "store", list(stages), parallel)


def config(root: Path, launcher: str = "inline") -> RunConfig:
    return RunConfig(name="run", output_dir=str(root), launcher=LauncherConfig(kind=launcher))


def command(root: Path, launcher: str, stages: list[dict], name: str = "run") -> list[str]:
    """The command line that executes a chain of stages (keyword arguments of `planned`, without `before`)."""
    job = {"root": str(root), "launcher": launcher, "stages": stages, "name": name}
    return [sys.executable, "-m", "tests.pipeline.build_plan", json.dumps(job)]


def main() -> int:
    from pipeline.runner import execute

    job = json.loads(sys.argv[1])
    root, chain = Path(job["root"]), []
    for fields in job["stages"]:
        chain.append(planned(**fields, before=chain[-1] if chain else None))
    plan = plan_of(root, *chain, name=job["name"])
    return execute(plan, config(root, job["launcher"]), root / "runs" / job["name"], [], preload=("torch",))


if __name__ == "__main__":
    sys.exit(main())
