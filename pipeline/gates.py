"""Gates: a condition on a stage's result that its readers wait for (gate.metric, gate.min, gate.max_drop).

The metric is looked up in the stage's evaluation first, then in its own metrics. `max_drop` compares with the
evaluation of the model that the stage started from.
"""

from __future__ import annotations

import re
from typing import Any

from pipeline.artifacts import Fault
from pipeline.config import ObjectiveConfig
from pipeline.messages import suggest
from pipeline.plan_types import Plan, PlannedStage

PASS_AT_K = re.compile(r"[^/]+/pass@(\d+)(_low|_high)?")  # of a suite: evaluations alone measure it
Metrics = dict[str, dict[str, Any]]  # stage -> its final metrics, for the stages that have ended


def has_gate(stage: PlannedStage) -> bool:
    return stage.cfg.gate.min is not None or stage.cfg.gate.max_drop is not None


def gate_faults(plan: Plan) -> list[Fault]:
    """Gates whose metric will certainly not be there. A plan does not know how a stage calls its own metrics."""
    found = []
    for stage in plan.stages:
        if not stage.wanted or not has_gate(stage):
            continue
        if told := _certainly_missing(plan, stage, metric_of(plan, stage)) or _no_drop(plan, stage):
            found.append(Fault(f"stages.{stage.name}.gate.metric", *told))
    return found


def objective_faults(plan: Plan, objective: ObjectiveConfig) -> list[Fault]:
    """The same of what a sweeper optimizes; `objective.stage` is one of the plan's."""
    stage = next(one for one in plan.stages if one.name == objective.stage)
    if not stage.wanted:
        return [Fault("objective.stage", f"is {stage.name}, which until leaves out", "let the run come so far")]
    told = _certainly_missing(plan, stage, objective.metric)
    return [Fault("objective.metric", *told)] if told else []


def metric_of(plan: Plan, stage: PlannedStage) -> str:
    """gate.metric; heldout/pass@k is short for that of the first evaluated suite that the stage trains on."""
    metric = stage.cfg.gate.metric
    evaluation = _evaluation(plan, stage.name)
    if evaluation is None or not re.fullmatch(r"heldout/pass@\d+", metric):
        return metric
    evaluated, trained = getattr(evaluation.cfg, "suites", []), getattr(stage.cfg, "suites", [])
    suites = [suite for suite in evaluated if suite in trained] or evaluated
    return metric.replace("heldout", suites[0])


def _evaluation(plan: Plan, name: str) -> PlannedStage | None:
    return next((one for one in plan.stages if one.evaluates == name), None)


def _certainly_missing(plan: Plan, stage: PlannedStage, metric: str) -> tuple[str, str] | None:
    """Problem and remedy; heldout/... is what monitors measure."""
    name = stage.name
    group, _, rest = metric.partition("/")
    if not rest:
        return f"'{metric}' is no name of a metric", "write GROUP/NAME, as reasoning/pass@1 or train/loss"
    if group == "heldout" and not getattr(stage.cfg, "monitor_every_steps", 0):
        example = rest if "/" in rest else f"reasoning/{rest}"
        return f"{metric} is of monitors, which {name} does not have on", f"write {example}, of its evaluation"
    match = PASS_AT_K.fullmatch(metric)
    if not match:
        return None
    evaluation = stage if stage.kind == "evaluate" else _evaluation(plan, name)
    if evaluation is None:
        remedy = "let its model be evaluated (evaluate, evaluation.enabled), or name a metric of the stage itself"
        return f"{metric} is of an evaluation, and {name} has none", remedy
    if not evaluation.wanted:
        remedy = f"write until={evaluation.name}, or a stage that needs {name}; or name a metric of the stage itself"
        return f"{metric} is of {evaluation.name}, which until leaves out", remedy
    suites, ks = getattr(evaluation.cfg, "suites", [group]), getattr(evaluation.cfg, "ks", [int(match[1])])
    if group not in suites:
        remedy = suggest(metric, [f"{suite}/{rest}" for suite in suites])
        return f"'{group}' is not evaluated", f"{remedy}, or add it to evaluation.suites"
    if int(match[1]) not in ks:
        remedy = f"write {group}/pass@{max(ks, default=1)}, or add {match[1]} to evaluation.ks"
        return f"pass@{match[1]} is not measured", remedy
    return None


def _no_drop(plan: Plan, stage: PlannedStage) -> tuple[str, str] | None:
    """Why max_drop could never be judged, and the remedy."""
    before = _start(stage)
    if stage.cfg.gate.max_drop is None:
        return None
    if before is None:
        return "is gated by max_drop, and there is no model of this run to compare with", "write gate.min instead"
    if PASS_AT_K.fullmatch(metric_of(plan, stage)) and _evaluation(plan, before) is None:
        return f"is gated by max_drop, and {before} is not evaluated", f"write stages.{before}.evaluate=true"
    return None


def pending(plan: Plan, sources: list[str], judged: dict[str, str | None]) -> bool:
    """Whether a reader of `sources` must still wait for a gate (one that stops has failed the run already)."""
    return any(has_gate(plan.stage(name)) and name not in judged for name in sources)


def can_judge(plan: Plan, stage: PlannedStage, metrics: Metrics) -> bool:
    return has_gate(stage) and all(name in metrics for name in _needed(plan, stage))


def judge(plan: Plan, stage: PlannedStage, metrics: Metrics) -> str | None:
    """What does not hold, with its interval where there is one, and how to go on; None where the gate lets pass."""
    gate, metric = stage.cfg.gate, metric_of(plan, stage)
    found = _merged(plan, stage.name, metrics)
    if found.get(metric) is None:  # also where it is not finite
        near = suggest(metric, [name for name, value in found.items() if isinstance(value, int | float)])
        return f"there is no metric {metric} -> {near}"
    value, told = found[metric], _told(metric, found)
    go_on = f"everything so far is kept; to go on all the same, write stages.{stage.name}.gate.on_fail=warn"
    remedy = f" -> {go_on}" if gate.on_fail == "stop" else ""
    if gate.min is not None and value < gate.min:
        return f"{metric} is {told}, below gate.min={gate.min:.4g}{remedy}"
    before = _start(stage)
    if gate.max_drop is None or before is None:
        return None
    earlier = _merged(plan, before, metrics)
    if earlier.get(metric) is not None and earlier[metric] - value > gate.max_drop:
        fell = f"fell from {_told(metric, earlier)} to {told}"
        return f"{metric} {fell}, by more than gate.max_drop={gate.max_drop:.4g}{remedy}"
    return None


def _told(metric: str, found: dict[str, Any]) -> str:
    low, high = found.get(f"{metric}_low"), found.get(f"{metric}_high")
    interval = "" if low is None or high is None else f" (95% interval {low:.4g}-{high:.4g})"
    return f"{found[metric]:.4g}{interval}"


def _start(stage: PlannedStage) -> str | None:
    """The stage whose model this one started from."""
    models = [source.stage for source in stage.inputs.values() if source.kind == "model"]
    return models[0] if models else None


def _needed(plan: Plan, stage: PlannedStage) -> list[str]:
    before = _start(stage) if stage.cfg.gate.max_drop is not None else None
    stages = [stage.name] + ([before] if before is not None else [])
    return stages + [one.name for one in plan.stages if one.evaluates in stages and one.wanted]


def _merged(plan: Plan, name: str, metrics: Metrics) -> dict[str, Any]:
    """Of the stage itself, and of its evaluation, which comes first."""
    evaluation = _evaluation(plan, name)
    return metrics.get(name, {}) | (metrics.get(evaluation.name, {}) if evaluation else {})
