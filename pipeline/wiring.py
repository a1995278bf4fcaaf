"""Ports to sources: which output of which stage, or what external thing, feeds every input; and the order that follows.

Nothing is guessed: a port is wired by name or it is open, and an open port that is required is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.artifacts import Fault, Port
from pipeline.config import StageConfig
from pipeline.hub import Revisions
from pipeline.kinds import kinds
from pipeline.messages import nearest, suggest
from pipeline.plan_types import Source
from pipeline.sources import Digests, external_source, is_external

EVAL = ".eval"


@dataclass
class Wiring:
    """The graph: sources of every stage, an order in which sources come first, and what is wrong."""

    sources: dict[str, dict[str, Source]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # stages whose inputs are not all known
    faults: list[Fault] = field(default_factory=list)


def wire(stages: dict[str, StageConfig], digests: Digests, revisions: Revisions) -> Wiring:
    """Resolve every input of every stage and order them. Faults are collected, never raised."""
    wiring = Wiring()
    wrong = {name for name, stage in stages.items() if not _known_kind(name, stage, wiring)}
    stages = {name: stage for name, stage in stages.items() if name not in wrong}
    for name, stage in stages.items():
        if any((wired or "").partition(".")[0] in wrong for wired in stage.inputs.values()):
            wiring.broken.add(name)  # what it reads is a fault already
            wiring.sources[name] = {}
            continue
        found = [_source(name, port, stages, digests, revisions) for port in kinds()[stage.kind].inputs]
        unknown = [_unknown_port(name, port, stage) for port in stage.inputs if port not in kinds()[stage.kind].inputs]
        faults = [item for item in [*found, *unknown] if isinstance(item, Fault)]
        wiring.sources[name] = {item.port: item for item in found if isinstance(item, Source)}
        wiring.faults += faults
        if faults:
            wiring.broken.add(name)
    _order(wiring)
    return wiring


def independent(one: str, other: str, before: dict[str, set[str]]) -> bool:
    """Whether two stages may run side by side; `before`: stage -> its ancestors."""
    return one != other and one not in before[other] and other not in before[one]


def ancestors(name: str, wiring: Wiring) -> set[str]:
    """Every stage that must be there before `name`."""
    found: set[str] = set()
    waiting = [source.stage for source in wiring.sources[name].values() if source.stage]
    while waiting:
        stage = waiting.pop()
        if stage not in found:
            found.add(stage)
            waiting += [source.stage for source in wiring.sources[stage].values() if source.stage]
    return found


def _known_kind(name: str, stage: StageConfig, wiring: Wiring) -> bool:
    if stage.kind in kinds() and isinstance(stage, kinds()[stage.kind].config):
        return True
    problem = f"'{stage.kind}' is not the kind that this stage was composed as"
    wiring.faults.append(Fault(f"stages.{name}.kind", problem, f"write stage@stages.{name}={stage.kind} instead"))
    return False


def _source(
    name: str, port: str, stages: dict[str, StageConfig], digests: Digests, revisions: Revisions
) -> Source | Fault | None:
    declared = kinds()[stages[name].kind].inputs[port]
    wired = stages[name].inputs.get(port)
    key = _key(name, port)
    if wired is None:
        if declared.optional:
            return None
        return Fault(key, f"is not wired: {declared.doc}", _compatible(name, key, declared, "", stages))
    if is_external(wired):
        found = external_source(port, declared.kind, wired, digests, revisions)
        return found if isinstance(found, Source) else Fault(key, found.problem, found.remedy)
    maker, _, output = wired.partition(".")
    if maker not in stages:
        problem = f"there is no stage '{maker}' in this run" if output else f"'{wired}' is not STAGE.PORT"
        return Fault(key, problem, _compatible(name, key, declared, wired, stages))
    made = kinds()[stages[maker].kind].outputs
    if not output:
        fitting = [f"{maker}.{port}" for port, one in made.items() if one.kind == declared.kind]
        remedy = f"write {key}={fitting[0]}" if fitting else _compatible(name, key, declared, wired, stages)
        return Fault(key, f"'{wired}' is a stage and not one of its outputs", remedy)
    if output not in made:
        return Fault(
            key, f"{maker} has no output '{output}'", suggest(f"{maker}.{output}", [f"{maker}.{p}" for p in made])
        )
    if made[output].kind != declared.kind:
        problem = f"{wired} is a {made[output].kind}, the port takes a {declared.kind}"
        return Fault(key, problem, _compatible(name, key, declared, wired, stages))
    return Source(port, declared.kind, wired, fingerprint="", stage=maker, output=output)


def _compatible(name: str, key: str, declared: Port, wired: str, stages: dict[str, StageConfig]) -> str:
    """Which sources of this run would fit the port."""
    fitting = [
        f"{maker}.{output}"
        for maker, stage in stages.items()
        for output, made in kinds()[stage.kind].outputs.items()
        if made.kind == declared.kind and not maker.endswith(EVAL) and not _needs(maker, name, stages)
    ]
    otherwise = "evaluation.enabled=false" if name.endswith(EVAL) else f"leave {name} out too: ~stages.{name}"
    if declared.optional:
        otherwise = f"leave the port open: {key}=null"
    if not fitting:
        return f"write {key}=path:FOLDER of a {declared.kind}, or {otherwise}"
    close = nearest(wired, fitting) or fitting[0]
    fits = f"write {key}={close} (a {declared.kind}: {', '.join(fitting)})"
    return f"{fits}, or {otherwise}" if declared.optional else fits


def _needs(stage: str, other: str, stages: dict[str, StageConfig]) -> bool:
    """Whether `stage` is `other` or comes after it, so that `other` cannot read it."""
    seen: set[str] = set()
    waiting = [stage]
    while waiting:
        name = waiting.pop()
        if name == other.removesuffix(EVAL):
            return True
        if name in stages and name not in seen:
            seen.add(name)
            waiting += [wired.partition(".")[0] for wired in stages[name].inputs.values() if wired]
    return False


def _unknown_port(name: str, port: str, stage: StageConfig) -> Fault:
    ports = list(kinds()[stage.kind].inputs)
    return Fault(_key(name, port), f"{stage.kind} has no input '{port}'", suggest(port, ports))


def _key(name: str, port: str) -> str:
    if name.endswith(EVAL):
        return f"evaluation.{port}"
    return f"stages.{name}.inputs.{port}"


def _order(wiring: Wiring) -> None:
    """Depth first in the order of the pipeline, so that a chain reads as it is written."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = [*path[path.index(name) :], name]
            wiring.broken.update(cycle)
            port = next(p for p, source in wiring.sources[cycle[-2]].items() if source.stage == name)
            key = f"stages.{cycle[-2]}.inputs.{port}"
            remedy = "rewire one of them to a stage outside the circle"
            wiring.faults.append(Fault(key, f"stages wait for each other: {' <- '.join(cycle)}", remedy))
            return
        if name in done:
            return
        for source in wiring.sources[name].values():
            if source.stage:
                visit(source.stage, [*path, name])
        if name not in done:
            done.add(name)
            wiring.order.append(name)

    for name in wiring.sources:
        visit(name, [])
