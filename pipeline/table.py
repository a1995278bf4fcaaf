"""What `dry_run=true` prints: the plan as a table, then what is worth knowing about it."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.plan_types import Plan, PlannedStage

HEADER = ("stage", "kind", "inputs", "fingerprint", "plan", "parameters", "steps", "tokens")
RIGHT = ("parameters", "steps", "tokens")


def plan_table(plan: Plan) -> str:
    """One line a stage, then notes: why a stage runs again, warnings, knobs that do nothing."""
    right = tuple(HEADER.index(name) for name in RIGHT)
    return "\n".join(
        [columns([HEADER, *(_row(stage) for stage in plan.stages)], right), "", summary(plan), *_notes(plan)]
    )


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
    cached = sum(stage.cached for stage in wanted)
    return f"{plan.name}: {len(wanted)} stages, {cached} cached, {len(wanted) - cached} to run"


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
    )


def _notes(plan: Plan) -> list[str]:
    notes = list(plan.warnings)
    for stage in plan.stages:
        if stage.why and stage.why != "new":
            notes.append(f"{stage.name}: {stage.why}")
        if not stage.evaluates:
            notes += [f"{stage.name}: {warning}" for warning in stage.outline.warnings]
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
