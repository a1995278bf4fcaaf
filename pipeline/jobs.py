"""The jobs of a sweep, planned before any of them runs.

Hydra composes once for each set of *group* choices. What a value changes in that configuration is found one value at a
time and the changes of several axes are put together, so a thousand jobs cost a few dozen conversions; where two axes
change the same field, or may meet in an interpolation, or a value does not fit, the job is converted by itself. What is
run is always converted by itself.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import compose
from pipeline.artifacts import Fault
from pipeline.config import RunConfig
from pipeline.messages import CONF, Refused, line
from pipeline.plan import make_plan
from pipeline.plan_types import Plan
from pipeline.reword import reword

MOST_JOBS = 4096  # beyond it, only the first and the last value of every axis are planned: for a sweeper that searches

MEETING = ("model", "student", "data", "general_data")  # resolvers read several of their fields at once

Path = tuple[str, ...]  # where a field stands: ("stages", "reasoning_rl", "algorithm", "epsilon")
Change = dict[Path, Any]


@dataclass
class Axis:
    key: str  # as written, without its value
    values: list[str]
    sampled: bool = False  # an interval or a pattern: only the sweeper knows the values
    acts: set[str] = field(default_factory=set)  # stages
    idle: dict[str, str] = field(default_factory=dict)  # stage -> why it does nothing there

    @property
    def is_choice(self) -> bool:
        """A choice of a group, or something else that only Hydra can apply."""
        return "@" in self.key or self.key[0] in "+~" or (CONF / self.key).is_dir()


@dataclass
class Job:
    values: tuple[str, ...]  # one an axis
    overrides: list[str]
    plan: Plan | None  # None where the job is refused
    refusal: str = ""
    composed: Callable[[], RunConfig] | None = None  # what is run
    dry: bool = False
    plain: bool = True  # neither launcher nor sweeper nor callbacks of Hydra's are chosen, in no YAML either


def sweep_axes(arguments: list[str]) -> tuple[list[str], list[Axis]]:
    """Overrides that every job has, and those with several values. Hydra's own keys are left out.

    Raises Refused where an axis is written twice, or once more as an override that every job has.
    """
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
        else:
            values, sampled = _values(override)
            values = list(dict.fromkeys(values))
            if len(values) > 1 or sampled:
                axes.append(Axis(item.partition("=")[0], values, sampled))
            else:
                fixed.append(f"{item.partition('=')[0]}={values[0]}")
    written = [item.partition("=")[0] for item in fixed] + [axis.key for axis in axes]
    if doubled := [axis for axis in axes if written.count(axis.key) > 1]:
        remedy = "write it once, with all of its values"
        raise Refused([Fault(key, "is written more than once", remedy) for key in {axis.key: 0 for axis in doubled}])
    return fixed, axes


def axis_faults(axes: list[Axis]) -> list[Fault]:
    """What a grid cannot have."""
    remedy = "write values with commas between; hydra/sweeper=search objective.stage=NAME searches an interval"
    faults = [
        Fault(axis.key, "has no values of its own, as a grid needs them", remedy) for axis in axes if axis.sampled
    ]
    if fault := too_many(axes):
        faults.append(fault)
    return faults


def too_many(axes: list[Axis]) -> Fault | None:
    """More jobs than are planned one by one, so than a grid may have."""
    number = math.prod(max(1, len(axis.values)) for axis in axes)
    if number <= MOST_JOBS:
        return None
    longest = max(axes, key=lambda axis: len(axis.values))
    remedy = "sweep in parts, or search: hydra/sweeper=search objective.stage=NAME"
    return Fault(longest.key, f"makes this {number:,} jobs, a grid has {MOST_JOBS:,} at most", remedy)


def _values(override: Override) -> tuple[list[str], bool]:
    if override.is_interval_sweep():
        interval = override.value()
        assert isinstance(interval, IntervalSweep)
        return [str(interval.start), str(interval.end)], True
    if isinstance(override.value(), Glob):
        return [], True
    return [str(value) for value in override.sweep_string_iterator()], False


def plan_jobs(fixed: list[str], axes: list[Axis]) -> Iterator[Job]:
    """Every combination, in the order in which Hydra's basic sweeper runs them.

    Raises HydraException where a set of choices does not compose: Hydra's report of it is the better one.
    """
    known = [axis for axis in axes if axis.values]
    few = math.prod(len(axis.values) for axis in known) <= MOST_JOBS
    values = [axis.values if few else [axis.values[0], axis.values[-1]] for axis in known]
    chosen = [place for place, axis in enumerate(known) if axis.is_choice]
    bases: dict[tuple[str, ...], _Base] = {}
    for combination in itertools.product(*values):
        choices = tuple(f"{known[place].key}={combination[place]}" for place in chosen)
        written = [f"{axis.key}={value}" for axis, value in zip(known, combination) if not axis.is_choice]
        overrides = [*fixed, *(f"{axis.key}={value}" for axis, value in zip(known, combination))]
        try:
            if choices not in bases:
                bases[choices] = _Base(*compose.composed([*fixed, *choices]), [*fixed, *choices])
            base = bases[choices]
            cfg = base.with_values(written, overrides)
            dry, cfg.dry_run = cfg.dry_run, True
            plan = make_plan(cfg, overrides)
            composed = functools.partial(base.exactly, written, overrides)
            yield Job(combination, overrides, plan, composed=composed, dry=dry, plain=base.is_plain)
        except Refused as refusal:
            yield Job(combination, overrides, None, str(refusal))
        except OmegaConfBaseException as error:
            yield Job(combination, overrides, None, line(reword(error, overrides)))


@dataclass
class _Base:
    """A composed configuration, and what each value that was met so far changes in it."""

    config: DictConfig
    choices: dict[str, Any]
    overrides: list[str]
    hydra: Any = field(default_factory=lambda: HydraConfig.instance().cfg)  # Hydra's own part, of the same choices
    cfg: RunConfig | None = None
    changes: dict[str, Change] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        own = (self.choices["hydra/launcher"], self.choices["hydra/sweeper"]) == ("basic", "planned")
        return own and not self.hydra.hydra.callbacks

    def exactly(self, written: list[str], overrides: list[str]) -> RunConfig:
        """Nothing taken from another job. Raises Refused, or OmegaConf's own error where a value has the wrong type."""
        return compose.compose(overrides) if any("$" in item for item in written) else self._typed(written)

    def with_values(self, written: list[str], overrides: list[str]) -> RunConfig:
        """The same, put together from what each value changes. Raises as well."""
        if not written or any("$" in item or item.partition("=")[0].split(".")[0] in MEETING for item in written):
            return self.exactly(written, overrides)
        if self.cfg is None:
            self.cfg = self._typed([])
        for item in written:
            if item not in self.changes:
                other, path = self._typed([item]), tuple(item.partition("=")[0].split("."))
                # what is written counts even where it is what was there: nothing else reaches that field any more
                self.changes[item] = {path: _get(other, path), **dict(_difference(self.cfg, other))}
        taken = [self.changes[item] for item in written]
        if len(set().union(*taken)) < sum(map(len, taken)):
            return self._typed(written)
        return _changed(self.cfg, {path: value for change in taken for path, value in change.items()})

    def _typed(self, written: list[str]) -> RunConfig:
        HydraConfig.instance().cfg = self.hydra  # for ${hydra:...} in a YAML
        config = copy.deepcopy(self.config) if written else self.config
        for (override,) in map(OverridesParser.create().parse_overrides, [[item] for item in written]):
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=False)
        return compose.typed(config, self.choices, [*self.overrides, *written])


def _difference(one: Any, other: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Fields of `other` that differ from `one`'s; a field that is no dataclass and no mapping of them counts whole."""
    if type(one) is type(other) and dataclasses.is_dataclass(one):
        for item in dataclasses.fields(one):
            yield from _difference(getattr(one, item.name), getattr(other, item.name), (*path, item.name))
    elif path == ("stages",) and one.keys() == other.keys():
        for name in one:
            yield from _difference(one[name], other[name], (*path, name))
    elif one != other:
        yield path, other


def _changed(cfg: RunConfig, change: Change) -> RunConfig:
    """A copy; what no change touches is shared."""
    new = dataclasses.replace(cfg, stages=dict(cfg.stages))
    copied: set[Path] = set()
    for path, value in change.items():
        top = path[:2] if path[0] == "stages" else path[:1]
        if top not in copied:
            copied.add(top)
            _put(new, top, copy.deepcopy(_get(new, top)))
        _put(new, path, value)
    return new


def _get(node: Any, path: Path) -> Any:
    for name in path:
        node = node[name] if isinstance(node, dict) else getattr(node, name)
    return node


def _put(node: Any, path: Path, value: Any) -> None:
    holder = _get(node, path[:-1])
    if isinstance(holder, dict):
        holder[path[-1]] = value
    else:
        setattr(holder, path[-1], value)
