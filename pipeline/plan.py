"""The plan: which stages there are, in which order, from which inputs, and which of them are already in the store.

    pin       names of the hub to commits, once and for all                           hub.py
    wire      every port to an output of another stage or to something external       wiring.py
    check     configs, facts, machine; all faults are reported at once                checks.py
    name      each stage by the fingerprint of its recipe                             fingerprint.py
    look up   what is sealed under that name, from today's inputs                     store.py
    estimate  what each stage will take, where there are no faults                    estimates.py

Nothing is computed, torch is not imported: a plan of ten stages takes milliseconds. Nothing is written but the commits
of hub names and the digests of files, neither in a dry run.
Threads per rank are fixed here, because they are part of what makes a result bit-identical: cores // (ranks x b x r),
where r is the number of runs on this machine at the same time, and b is 1 for a stage that every other stage waits for
or is waited for by, else as many stages as may run side by side. It looks at the whole recipe, never at what happens
to be cached, so that a second run gets the same threads.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pipeline.artifacts import Fault, Outline
from pipeline.checks import SHARED, as_written, config_faults, inert_knobs, machine_faults, run_faults, store_faults
from pipeline.config import LauncherConfig, RunConfig, StageConfig
from pipeline.estimates import add_costs
from pipeline.fingerprint import fingerprint
from pipeline.gates import gate_faults
from pipeline.hub import Revisions, pin
from pipeline.kinds import Kind, kinds
from pipeline.messages import Refused
from pipeline.plan_types import Plan, PlannedStage, Source
from pipeline.provenance import hardware, source_digest
from pipeline.sources import Digests
from pipeline.store import is_current, read_manifest, unfinished
from pipeline.wiring import EVAL, Wiring, ancestors, independent, wire

MOST_PARALLEL = 2  # stages side by side, where the launcher does not say


def make_plan(cfg: RunConfig, overrides: list[str] | None = None) -> Plan:
    """Order, check, name and look up every stage. Raises Refused with all faults."""
    store = Path(cfg.output_dir) / "store"
    digests, revisions = Digests.of_store(store), Revisions.of_store(store, remember=not cfg.dry_run)
    cfg, not_pinned = pinned(cfg, revisions)
    stages = with_evaluations(cfg)
    wiring = wire(stages, digests, revisions)
    faults = [*run_faults(cfg, list(stages)), *not_pinned, *wiring.faults]
    before = {name: ancestors(name, wiring) for name in wiring.order}
    parallel = stages_side_by_side(cfg.launcher)
    plan = Plan(cfg.name, cfg.pipeline, store, [], parallel, warnings=revisions.notes)
    faulty = {name: config_faults(name, stage, cfg) for name, stage in stages.items()}
    faults += [fault for found in faulty.values() for fault in found]
    for name in wiring.order:
        planned = _plan_stage(name, stages[name], wiring, plan, cfg, None if faulty[name] else digests)
        planned.threads = threads(name, planned.ranks, before, cfg.launcher, parallel)
        faults += machine_faults(planned, cfg, plan.warnings)
        faults += store_faults(planned, plan.store)
        faults += [as_written(name, planned.cfg, fault, cfg) for fault in planned.outline.faults]
        plan.stages.append(planned)
    plan.warnings += inert_knobs(cfg, plan.stages, overrides or [])
    _mark_wanted(plan, cfg, before)
    faults += gate_faults(plan)
    if not faults:
        faults += _from_stage_faults(plan, cfg, before)
    if faults:
        raise Refused(list(dict.fromkeys(faults)))
    add_costs(plan, cfg.launcher, before)  # only now: what is refused need not have any
    if not cfg.dry_run:
        digests.save()
    return plan


def pinned(cfg: RunConfig, revisions: Revisions) -> tuple[RunConfig, list[Fault]]:
    """The same with a commit for every name of the hub, in the stages and in what they have from the root."""
    stages, faults = {}, []
    for name, stage in cfg.stages.items():
        stages[name], found = pin(stage, revisions)
        faults += [as_written(name, stage, fault, cfg) for fault in found]
    shared = {root: getattr(cfg, root) for root in SHARED}  # whose faults are there already where a stage reads them
    roots = {root: pin(node, revisions)[0] for root, node in shared.items() if node is not None}
    return dataclasses.replace(cfg, stages=stages, **roots), faults


def with_evaluations(cfg: RunConfig) -> dict[str, StageConfig]:
    """All stages, each that makes a model followed by its `<stage>.eval`."""
    stages: dict[str, StageConfig] = {}
    for name, stage in cfg.stages.items():
        stages[name] = stage
        port = kinds()[stage.kind].model_port if stage.kind in kinds() else None
        if port and stage.evaluate and cfg.evaluation.enabled:
            stages[name + EVAL] = _evaluation_of(f"{name}.{port}", cfg)
    return stages


def _evaluation_of(model: str, cfg: RunConfig) -> StageConfig:
    config: Any = kinds()["evaluate"].config
    names = {item.name for item in dataclasses.fields(config)}
    asked = {item.name: getattr(cfg.evaluation, item.name) for item in dataclasses.fields(cfg.evaluation)}
    taken = {name: value for name, value in asked.items() if name in names}
    inputs = {"model": model, "problems": cfg.evaluation.problems}
    return config(inputs=inputs, num_ranks=1, **taken)


def _plan_stage(
    name: str, stage: StageConfig, wiring: Wiring, plan: Plan, cfg: RunConfig, digests: Digests | None
) -> PlannedStage:
    """`digests` is None for a stage that is refused: what it names by mistake may be a whole disk."""
    kind = kinds()[stage.kind]
    sources = {port: _resolved(source, plan) for port, source in wiring.sources[name].items()}
    known = name not in wiring.broken and all(not s.stage or s.stage not in wiring.broken for s in sources.values())
    if not known:
        wiring.broken.add(name)
    outline = kind.outline(stage, {port: s.facts for port, s in sources.items()}) if known else Outline()
    planned = PlannedStage(
        name=name,
        kind=stage.kind,
        cfg=stage,
        inputs=sources,
        fingerprint=fingerprint(kind, stage, sources, digests, outline.redundant) if digests else "",
        cached=False,
        outline=outline,
        threads=1,
        ranks=cfg.launcher.num_ranks if stage.num_ranks is None else stage.num_ranks,
        forced=name in cfg.force,
        evaluates=name.removesuffix(EVAL) if name.endswith(EVAL) else None,
    )
    _look_up(planned, kind, plan, cfg)
    return planned


def _resolved(source: Source, plan: Plan) -> Source:
    """A source with the fingerprint and the facts of the stage that makes it; sealed facts are surer than declared."""
    if source.stage is None:
        return source
    maker = next((stage for stage in plan.stages if stage.name == source.stage), None)
    if maker is None:
        return source
    facts = dict(maker.outline.outputs.get(source.output or "", {}))
    sealed = read_manifest(plan.store, maker.kind, maker.fingerprint) if maker.cached else None
    if sealed:
        facts.update(sealed["outputs"][source.output])
    return dataclasses.replace(source, fingerprint=maker.fingerprint, facts=facts)


def _look_up(planned: PlannedStage, kind: Kind, plan: Plan, cfg: RunConfig) -> None:
    """Is it sealed, from today's inputs, by today's code?"""
    manifest = read_manifest(plan.store, planned.kind, planned.fingerprint)
    makers = [plan.stage(s.stage) for s in planned.inputs.values() if s.stage in {one.name for one in plan.stages}]
    waiting = [maker.name for maker in makers if not maker.cached]
    if manifest is None:
        begun = unfinished(plan.store, planned.kind, planned.fingerprint)
        planned.why = f"goes on from step {begun[0]}" if begun else "new"
        return
    planned.code_changed = manifest["source_digest"] != source_digest(f"stages.{kind.name}")
    if planned.forced:
        planned.why = "forced"
    elif planned.code_changed and cfg.reuse == "strict":
        planned.forced, planned.why = True, "code changed since (reuse=strict)"
    elif waiting:
        planned.why = f"runs again if {', '.join(dict.fromkeys(waiting))} comes out different"
    elif not is_current(manifest, _digests_today(planned, plan)):
        planned.why = "an input came out different since"
    else:
        planned.cached = True
        planned.why = "code changed since" if planned.code_changed else ""


def _digests_today(planned: PlannedStage, plan: Plan) -> dict[str, str]:
    found = {}
    for port, source in planned.inputs.items():
        if source.stage is None:
            found[port] = source.digest or ""
        else:
            sealed = read_manifest(plan.store, plan.stage(source.stage).kind, source.fingerprint)
            found[port] = sealed["outputs"][source.output]["digest"] if sealed else ""
    return found


def _mark_wanted(plan: Plan, cfg: RunConfig, before: dict[str, set[str]]) -> None:
    """until=STAGE keeps the stage, all it needs and the evaluations of what it needs; its own is STAGE.eval.

    What such an evaluation needs beside that is kept as well, unless it makes a model: nothing is trained to evaluate.
    """
    if cfg.until is None or cfg.until not in before:
        return
    needed, wanted = before[cfg.until], before[cfg.until] | {cfg.until}
    for stage in plan.stages:
        more = before[stage.name] - needed
        if stage.evaluates in needed and not any("model" in plan.stage(name).outline.outputs for name in more):
            wanted = wanted | more | {stage.name}
    for stage in plan.stages:
        stage.wanted = stage.name in wanted


def _from_stage_faults(plan: Plan, cfg: RunConfig, before: dict[str, set[str]]) -> list[Fault]:
    if cfg.from_stage is None:
        return []
    missing = [stage.name for stage in plan.stages if stage.name in before[cfg.from_stage] and not stage.cached]
    if not missing:
        return []
    remedy = f"leave from_stage out, or write from_stage={missing[0]}"
    return [Fault("from_stage", f"before {cfg.from_stage}, not cached: {', '.join(missing)}", remedy)]


def stages_side_by_side(launcher: LauncherConfig) -> int:
    if launcher.kind == "inline":
        return 1
    if launcher.parallel_stages:
        return launcher.parallel_stages
    machine = hardware()
    places = (machine["gpus"] or machine["cores"]) // max(1, launcher.concurrent_runs)
    return max(1, min(MOST_PARALLEL, places // max(1, launcher.num_ranks)))


def threads(name: str, ranks: int, before: dict[str, set[str]], launcher: LauncherConfig, parallel: int) -> int:
    """CPU threads of each of a stage's ranks; the rule stands at the top of this file."""
    if launcher.threads:
        return launcher.threads
    beside = [other for other in before if independent(name, other, before)]
    width = min(parallel, 1 + len(beside))
    return max(1, hardware()["cores"] // (max(1, ranks) * width * max(1, launcher.concurrent_runs)))
