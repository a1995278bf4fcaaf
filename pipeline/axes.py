"""Axes of a sweep that act on no stage, or on some only, found before a job runs.

A sweep over a knob that does nothing produces differences that are noise, and somebody writes them up. So every job's
configuration is compared with those that differ from it in one axis alone: the axis acts on a stage where some field
differs that the stage does not call inert. Hydra composes once for each set of *group* choices; values are then
written into that configuration, so a sweep of a hundred jobs is judged in seconds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import compose
from pipeline.artifacts import Fault
from pipeline.checks import ROOT_KNOBS, describe
from pipeline.config import RunConfig
from pipeline.messages import CONF, Refused
from pipeline.plan import make_plan
from pipeline.plan_types import PlannedStage

MOST_JOBS = 512  # beyond it, every axis is judged by its first and last value
ELSEWHERE = "it decides where or how fast a stage runs, never what comes out of it"

Fields = dict[str, tuple[Any, bool]]  # key with dots -> value, and whether it is part of the fingerprint


@dataclass
class Axis:
    key: str  # as written, without its value
    values: list[str]
    acts: set[str] = field(default_factory=set)  # stages
    idle: dict[str, str] = field(default_factory=dict)  # stage -> why it does nothing there

    @property
    def is_choice(self) -> bool:
        """A choice of a group, or something else that only Hydra can apply."""
        return "@" in self.key or self.key[0] in "+~" or (CONF / self.key).is_dir()


@dataclass
class Job:
    """One set of values with what its stages read; None where the job is refused anyway."""

    values: tuple[str, ...]
    stages: dict[str, tuple[Fields, PlannedStage]] | None


def check_axes(arguments: list[str]) -> list[str]:
    """Notes on axes that act on some stages only; on none, where the user insists (allow_inert=true).

    Raises Refused where an axis acts on no stage. What Hydra cannot compose is left for Hydra to report.
    """
    fixed, axes = sweep_axes(arguments)
    if not axes:
        return []
    try:
        jobs = list(_jobs(fixed, axes))
    except (HydraException, OmegaConfBaseException):
        return []
    planned = [job for job in jobs if job.stages is not None]
    if not planned:
        return []
    for place, axis in enumerate(axes):
        _judge(axis, place, planned)
    told = {axis.key: axis for axis in axes if not axis.acts and _was_compared(axes, axis, planned)}
    notes = [describe(axis.key, sorted(axis.acts), axis.idle) for axis in axes if axis.acts and axis.idle]
    if "allow_inert=true" in fixed:
        return notes + [describe(axis.key, [], axis.idle) for axis in told.values()]
    if told:
        raise Refused([_fault(axis) for axis in told.values()])
    return notes


def sweep_axes(arguments: list[str]) -> tuple[list[str], list[Axis]]:
    """Overrides that every job has, and those with several values. Hydra's own keys are left out."""
    overrides = [item for item in arguments if not item.startswith("-") and ("=" in item or item.startswith("~"))]
    fixed, axes = [], []
    for item in overrides:
        if item.lstrip("+~").startswith("hydra"):
            continue
        try:
            (override,) = OverridesParser.create().parse_overrides([item])
        except HydraException:
            fixed.append(item)
            continue
        if not override.is_sweep_override():
            fixed.append(item)
        elif len(values := _values(override)) > 1:
            axes.append(Axis(item.partition("=")[0], values))
    return fixed, axes


def _values(override: Override) -> list[str]:
    if override.is_interval_sweep():
        interval = override.value()
        assert isinstance(interval, IntervalSweep)
        return [str(interval.start), str(interval.end)]
    if isinstance(override.value(), Glob):
        return []  # only Hydra knows what it matches
    return [str(value) for value in override.sweep_string_iterator()]


def _jobs(fixed: list[str], axes: list[Axis]) -> Iterator[Job]:
    """Every combination, composed once a set of choices; a value that does not fit there is composed by itself."""
    count = 1
    for axis in axes:
        count *= len(axis.values)
    values = [axis.values if count <= MOST_JOBS else [axis.values[0], axis.values[-1]] for axis in axes]
    chosen = [place for place, axis in enumerate(axes) if axis.is_choice]
    ready: dict[tuple[str, ...], tuple[DictConfig, dict[str, Any]]] = {}
    for combination in itertools.product(*values):
        choices = tuple(f"{axes[place].key}={combination[place]}" for place in chosen)
        written = [f"{axis.key}={value}" for axis, value in zip(axes, combination, strict=True) if not axis.is_choice]
        overrides = [*fixed, *choices, *written]
        try:
            if choices not in ready:
                ready[choices] = compose.composed([*fixed, *choices])
            config, names = ready[choices]
            for (override,) in map(OverridesParser.create().parse_overrides, [[item] for item in written]):
                OmegaConf.update(config, override.key_or_group, override.value(), force_add=False)
            yield Job(combination, _stages(compose.typed(config, names, overrides), overrides))
        except (Refused, OmegaConfBaseException):
            yield Job(combination, None)


def _stages(cfg: RunConfig, overrides: list[str]) -> dict[str, tuple[Fields, PlannedStage]]:
    cfg.dry_run = True
    return {stage.name: (_fields(stage.cfg), stage) for stage in make_plan(cfg, overrides).stages}


def _fields(config: Any, prefix: str = "", counts: bool = True) -> Fields:
    """A config as flat keys. What two jobs do not share is found by comparing these."""
    if dataclasses.is_dataclass(config):
        found: Fields = {}
        for item in dataclasses.fields(config):
            inside = counts and item.metadata.get("fingerprint", True)
            found |= _fields(getattr(config, item.name), f"{prefix}{item.name}.", inside)
        return found
    return {prefix.rstrip("."): (config, counts)}


def _judge(axis: Axis, place: int, jobs: list[Job]) -> None:
    """Compare all jobs that share every other axis."""
    lines: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        lines.setdefault((*job.values[:place], *job.values[place + 1 :]), []).append(job)
    for line in lines.values():
        first = line[0].stages
        for other in line[1:]:
            assert first is not None and other.stages is not None
            for name in first.keys() | other.stages.keys():
                if name not in first or name not in other.stages:
                    axis.acts.add(name)
                else:
                    _compare(axis, name, first[name], other.stages[name])
    for name in axis.acts:
        axis.idle.pop(name, None)


def _compare(axis: Axis, name: str, one: tuple[Fields, PlannedStage], other: tuple[Fields, PlannedStage]) -> None:
    (before, stage), (after, _) = one, other
    different = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    for key in different:
        counts = before.get(key, after.get(key, (None, True)))[1]
        why = stage.outline.inert.get(key) if key in other[1].outline.inert else None
        if counts and why is None:
            axis.acts.add(name)
            return
        axis.idle.setdefault(name, why if counts and why else ELSEWHERE)
    knob = ROOT_KNOBS.get(axis.key)
    if not different and knob in before:
        axis.idle.setdefault(name, stage.outline.pinned.get(knob, "it has a value of its own"))


def _was_compared(axes: list[Axis], axis: Axis, jobs: list[Job]) -> bool:
    """At least two of its values were planned: jobs that are refused say nothing about an axis."""
    place = axes.index(axis)
    return len({job.values[place] for job in jobs}) > 1


def _fault(axis: Axis) -> Fault:
    problem = describe("is an axis that", [], axis.idle)
    return Fault(axis.key, problem, "leave it out of the sweep, or insist with allow_inert=true")
