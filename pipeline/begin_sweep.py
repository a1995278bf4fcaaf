"""A sweep before its first job: refuse what is none, plan every job, say what they will compute, begin the ledger."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import axes, compose, gates, jobs, sweep
from pipeline.artifacts import Fault
from pipeline.flags import asks_hydra
from pipeline.messages import Refused


class NothingToRun(Exception):
    """Every job was refused, or they were only to be planned; all of it has been told."""

    def __init__(self, status: int) -> None:
        self.status = status


@dataclass
class Prepared:
    folder: Path
    runnable: dict[str, jobs.Job]  # by name
    refused: int
    is_plain: bool  # Hydra has no part in it any more
    for_hydra: list[str] = field(default_factory=list)  # what its launcher and its sweeper are told besides


def begin_sweep(arguments: list[str], command: str) -> Prepared:
    """A sweeper that chooses its values as it goes (optuna), which is no grid, gets its check of axes, and no more.
    Raises NothingToRun, or Refused where that is no sweep at all."""
    fixed, axes_ = jobs.sweep_axes(arguments)
    is_grid = sweep.is_planned(arguments)
    refuse_no_sweep(arguments, fixed, axes_, is_grid)
    planned = plan_all(fixed, axes_)
    runnable = [one for one in planned if one.plan is not None]
    refused = len(planned) - len(runnable)
    share = f"launcher.concurrent_runs={sweep.side_by_side(arguments, len(runnable))}"
    if runnable and not is_grid:
        refuse_objective(runnable[0])
    notes = axes.check_axes(axes_, planned, insist="allow_inert=true" in fixed)
    for line in sweep.refusals(axes_, planned):
        print(line, file=sys.stderr)
    if not runnable:
        raise NothingToRun(sweep.REFUSED)
    for line in [*notes, *([sweep.summary(planned)] if is_grid else [])]:
        print(line, flush=True)
    if runnable[0].dry:
        if not is_grid:
            print("a search chooses its values as it goes; here are the ends of its axes:")
        print(sweep.table(axes_, planned))
        raise NothingToRun(sweep.exit_status([sweep.REFUSED] * refused + [sweep.DONE] * len(runnable)))
    folder, base = folder_and_base(fixed, runnable[0])
    sweep.begin(folder, command, base, axes_, planned if is_grid else [])
    by_name = {sweep.job_name(axes_, one): one for one in runnable}
    is_plain = not asks_hydra(arguments) and all(one.plain for one in runnable)
    prepared = Prepared(folder, by_name, refused if is_grid else 0, is_plain)
    if not is_plain:
        sweep.TO_LAUNCH.clear()
        for name, one in by_name.items():
            sweep.TO_LAUNCH[name] = [*one.overrides, share, f"hydra.sweep.subdir='{name}'"]
        prepared.for_hydra.append(f"hydra.sweep.dir='{folder}'")
    if not is_grid:
        keys = [key for item in [*fixed, share] if "@" not in (key := item.partition("=")[0])]
        if not any("hydra/sweeper/sampler" in item or "hydra.sweeper.sampler" in item for item in arguments):
            prepared.for_hydra.append("hydra.sweeper.sampler.seed=0")  # the same command asks for the same trials
        prepared.for_hydra += [share, f"hydra.job.config.override_dirname.exclude_keys=[{','.join(keys)}]"]
    return prepared


def refuse_no_sweep(arguments: list[str], fixed: list[str], axes_: list[jobs.Axis], is_grid: bool) -> None:
    if "dry_run" in [axis.key.lstrip("+") for axis in axes_]:
        raise Refused([Fault("dry_run", "is no axis: it is for all jobs", "write dry_run=true")])
    if not is_grid and not any(item.startswith("objective.stage=") for item in fixed):
        problem = "is not set, so a sweeper has nothing to optimize"
        raise Refused([Fault("objective.stage", problem, "write the name of a stage")])
    if faults := jobs.axis_faults(axes_) if is_grid else []:
        raise Refused(faults)
    if asks_hydra(arguments):  # Hydra says best what is wrong with its own choices
        compose.composed([*fixed, *(item for item in arguments if item.lstrip("+~").startswith("hydra"))])


def refuse_objective(job: jobs.Job) -> None:
    """Of a search: raises Refused where what is to be optimized will certainly not be measured."""
    assert job.plan is not None and job.composed is not None
    if faults := gates.objective_faults(job.plan, job.composed().objective):
        raise Refused(faults)


def folder_and_base(fixed: list[str], job: jobs.Job) -> tuple[Path, dict[str, Any]]:
    """The sweep's folder, and what all of its jobs have in common."""
    plan, base = job.plan, sweep.base_of(fixed)
    assert plan is not None
    named = any(item.startswith("name=") for item in fixed)
    name = plan.name if named else compose.default_name(plan.pipeline, fixed)
    return sweep.folder_of(plan.store.parent / "sweeps", name, base), base


def plan_all(fixed: list[str], axes_: list[jobs.Axis]) -> list[jobs.Job]:
    gc.disable()  # a thousand plans are kept: to look through them again and again takes a fifth of the time
    try:
        return list(jobs.plan_jobs(fixed, axes_))
    finally:
        gc.enable()
