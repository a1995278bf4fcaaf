"""What `dry_run=true` prints: the plan as a table, then what is worth knowing about it."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.display import duration
from pipeline.estimates import gib
from pipeline.plan_types import Plan, PlannedStage

RIGHT = ("parameters", "steps", "tokens", "memory", "disk", "time")
FAR = 4.0  # times the work
HEADER = ("stage", "kind", "inputs", "fingerprint", "plan", *RIGHT)


def plan_table(plan: Plan, costs: str = "brief") -> str:
    """One line a stage, then notes: why a stage runs again, warnings, knobs that do nothing. costs=full: what each
    stage's memory consists of."""
    right = tuple(HEADER.index(name) for name in RIGHT)
    parts = [columns([HEADER, *(_row(stage) for stage in plan.stages)], right), ""]
    if costs == "full":
        parts += [memory_table(plan), ""]
    return "\n".join([*parts, summary(plan), *_notes(plan)])


def memory_table(plan: Plan) -> str:
    """A rank's memory at the worst moment of each stage, by what takes it."""
    shown = [stage for stage in plan.stages if stage.costs.memory]
    names = list(dict.fromkeys(name for stage in shown for name in stage.costs.memory or {}))
    rows = [("stage", "memory a rank while", *names)]
    for stage in shown:
        sizes = stage.costs.memory or {}
        rows.append((stage.name, stage.costs.moment, *(gib(sizes[name]) if name in sizes else "" for name in names)))
    return columns(rows, right=range(2, len(rows[0])))


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table in plain text, its first row underlined; the columns `right` stand on the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def summary(plan: Plan) -> str:
    wanted = [stage for stage in plan.stages if stage.wanted]
    coming = [stage for stage in wanted if not stage.cached]
    text = f"{plan.name}: {len(wanted)} stages, {len(wanted) - len(coming)} cached, {len(coming)} to run"
    return text + (_time_and_room(coming) if coming else "")


def _time_and_room(coming: list[PlannedStage]) -> str:
    """ "; 11m of work and 3 stages of unknown time, 120 MiB of results". Stages may run side by side."""
    known = [stage.seconds for stage in coming if stage.seconds is not None]
    times = [f"about {duration(sum(known))} of work"] if known else []
    if unknown := len(coming) - len(known):
        times.append(f"{unknown} of unknown time")
    return f"; {' and '.join(times)}, {gib(sum(stage.costs.disk or 0 for stage in coming))} of results"


def _row(stage: PlannedStage) -> tuple[str, ...]:
    state = "cached" if stage.cached else "run"
    return (
        stage.name,
        stage.kind,
        " ".join(dict.fromkeys(source.wired for source in stage.inputs.values())),
        stage.fingerprint,
        state if stage.wanted else "beyond until",
        _count(stage.outline.parameters),
        _exact(stage.outline.steps),
        _count(stage.outline.tokens),
        _memory(stage),
        "" if stage.costs.disk is None else gib(stage.costs.disk),
        "" if stage.cached else _time(stage),
    )


def _time(stage: PlannedStage) -> str:
    if stage.seconds is None:
        return "unknown"
    return f"~{duration(stage.seconds)}{'?' if _is_far(stage) else ''}"


def _is_far(stage: PlannedStage) -> bool:
    """Whether the time comes from a result that was much smaller or larger."""
    return stage.seconds is not None and not 1 / FAR <= stage.times_the_work <= FAR


def _memory(stage: PlannedStage) -> str:
    """A stage without a model takes next to nothing; of one whose model's shape is not declared nobody knows."""
    if stage.outline.work is None:
        return ""
    return "unknown" if stage.costs.peak is None else gib(stage.costs.peak)


def _notes(plan: Plan) -> list[str]:
    notes, changed = list(plan.warnings), []
    for stage in plan.stages:
        if stage.cached and stage.code_changed:
            changed.append(stage.name)
        elif stage.why and stage.why != "new":
            notes.append(f"{stage.name}: {stage.why}")
        if not stage.evaluates:
            notes += [f"{stage.name}: {warning}" for warning in stage.outline.warnings]
    if any(_is_far(stage) for stage in plan.stages if stage.wanted and not stage.cached):
        notes.append(f"times with ? come from results of more than {FAR:g} times, or less than 1/{FAR:g} of, the work")
    if changed:
        notes.append(f"made by other code, and used all the same (reuse=strict makes them again): {', '.join(changed)}")
    return [f"  {note}" for note in notes]


def _exact(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _count(number: int | None) -> str:
    if number is None:
        return ""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
