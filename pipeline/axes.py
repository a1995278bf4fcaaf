"""Axes of a sweep that act on no stage, or on some only, found before a job runs.

A sweep over a knob that does nothing produces differences that are noise, and somebody writes them up. So every job's
configuration is compared with those that differ from it in one axis alone: the axis acts on a stage where some field
differs that the stage does not call inert.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline.artifacts import Fault
from pipeline.checks import ROOT_KNOBS, describe
from pipeline.jobs import Axis, Job
from pipeline.messages import Refused
from pipeline.plan_types import PlannedStage

ELSEWHERE = "it decides where or how fast a stage runs, never what comes out of it"
MOST_COMPARED = 512  # jobs; beyond it, the first and the last value of every axis tell whether it acts

Fields = dict[str, tuple[Any, bool]]  # key with dots -> value, and whether it is part of the fingerprint
Stages = dict[str, tuple[Fields, PlannedStage]]


def check_axes(axes: list[Axis], jobs: list[Job], insist: bool) -> list[str]:
    """Notes on axes that act on some stages only; on none, where the user insists (allow_inert=true).

    Raises Refused where an axis acts on no stage. Jobs that are refused say nothing about an axis.
    """
    known = [axis for axis in axes if axis.values]
    planned = [(job.values, _stages(job)) for job in _few(known, jobs) if job.plan is not None]
    if not planned:
        return []
    for place, axis in enumerate(known):
        _judge(axis, place, planned)
    told = [
        axis for place, axis in enumerate(known) if not axis.acts and len({values[place] for values, _ in planned}) > 1
    ]
    notes = [describe(axis.key, sorted(axis.acts), axis.idle) for axis in known if axis.acts and axis.idle]
    if insist:
        return notes + [describe(axis.key, [], axis.idle) for axis in told]
    if told:
        raise Refused([_fault(axis) for axis in told])
    return notes


def _few(axes: list[Axis], jobs: list[Job]) -> list[Job]:
    if len(jobs) <= MOST_COMPARED:
        return jobs
    ends = [{axis.values[0], axis.values[-1]} for axis in axes]
    return [job for job in jobs if all(value in end for value, end in zip(job.values, ends, strict=True))]


def _stages(job: Job) -> Stages:
    assert job.plan is not None
    return {stage.name: (_fields(stage.cfg), stage) for stage in job.plan.stages}


def _fields(config: Any, prefix: str = "", counts: bool = True) -> Fields:
    """A config as flat keys. What two jobs do not share is found by comparing these."""
    if dataclasses.is_dataclass(config):
        found: Fields = {}
        for item in dataclasses.fields(config):
            inside = counts and item.metadata.get("fingerprint", True)
            found |= _fields(getattr(config, item.name), f"{prefix}{item.name}.", inside)
        return found
    return {prefix.rstrip("."): (config, counts)}


def _judge(axis: Axis, place: int, jobs: list[tuple[tuple[str, ...], Stages]]) -> None:
    """Compare all jobs that share every other axis."""
    lines: dict[tuple[str, ...], list[Stages]] = {}
    for values, stages in jobs:
        lines.setdefault((*values[:place], *values[place + 1 :]), []).append(stages)
    for first, *others in lines.values():
        for other in others:
            for name in [*first, *(name for name in other if name not in first)]:
                wanted = {name in stages and stages[name][1].wanted for stages in (first, other)}
                acts = len(wanted) > 1 or name not in first or name not in other
                if not acts:
                    acts = _compare(axis, name, first[name], other[name])
                if acts and wanted == {False}:
                    axis.idle.setdefault(name, "until leaves it out")
                elif acts:
                    axis.acts.add(name)
    for name in axis.acts:
        axis.idle.pop(name, None)


def _compare(axis: Axis, name: str, one: tuple[Fields, PlannedStage], other: tuple[Fields, PlannedStage]) -> bool:
    """Whether the axis changes what comes out of the stage; if not, and it reaches the stage, why not is noted."""
    (before, stage), (after, _) = one, other
    different = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    for key in different:
        counts = before.get(key, after.get(key, (None, True)))[1]
        why = stage.outline.inert.get(key) if key in other[1].outline.inert else None
        if counts and why is None:
            return True
        axis.idle.setdefault(name, why if counts and why else ELSEWHERE)
    knob = ROOT_KNOBS.get(axis.key)
    if not different and knob in before:
        axis.idle.setdefault(name, stage.outline.pinned.get(knob, "it has a value of its own"))
    return False


def _fault(axis: Axis) -> Fault:
    problem = describe("is an axis that", [], axis.idle)
    return Fault(axis.key, problem, "leave it out of the sweep, or insist with allow_inert=true")
