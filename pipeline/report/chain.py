"""The chain as a picture: stages one below the other, arcs from each to what it reads.

An arc diagram rather than boxes and arrows: it needs no layout search, never crosses a label, and fits a phone.
"""

from __future__ import annotations

from pipeline.report.capability import accuracy_line
from pipeline.report.load import RunView, StageView
from pipeline.report.page import chip, count, duration, text

ROW = 56  # pixels, the height of a row in style.css
WIDTH = 96
DOT_X = WIDTH - 12


def chain(run: RunView) -> str:
    stages = run.main_stages
    if not stages:
        return ""
    rows = {stage.name: index for index, stage in enumerate(stages)}
    arcs = "".join(
        _arc(rows[source.stage], rows[stage.name], source.is_model)
        for stage in stages
        for source in sorted(stage.sources, key=lambda source: source.is_model)  # models are drawn over data
        if source.stage in rows
    )
    dots = "".join(
        f'<circle class="{text(stage.status.split()[0])}" cx="{DOT_X}" cy="{_y(i)}" r="6"/>'
        for i, stage in enumerate(stages)
    )
    height = ROW * len(stages)
    picture = (
        f'<svg class="arcs" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="which stage reads which">{arcs}{dots}</svg>'
    )
    longest = max(_seconds(run, stage) for stage in stages) or 1.0
    return f'<div class="chain">{picture}<ol>{"".join(_row(run, stage, longest) for stage in stages)}</ol></div>'


def _y(row: int) -> float:
    return ROW * row + ROW / 2


def _arc(start: int, end: int, is_model: bool) -> str:
    """From a producer to its reader below; neighbours are joined by a straight line."""
    kind = "model" if is_model else "data"
    top, bottom = _y(start), _y(end)
    if end - start == 1 and is_model:
        return f'<path class="{kind}" d="M{DOT_X} {top}V{bottom}"/>'
    reach = min(DOT_X - 4, 14 + 11 * (end - start))
    x = DOT_X - reach * 4 / 3  # a cubic with both handles here bulges by `reach`
    return f'<path class="{kind}" d="M{DOT_X} {top}C{x:.0f} {top},{x:.0f} {bottom},{DOT_X} {bottom}"/>'


def _seconds(run: RunView, stage: StageView) -> float:
    evaluation = run.by_name.get(f"{stage.name}.eval")
    return stage.seconds + (evaluation.seconds if evaluation else 0.0)


def _row(run: RunView, stage: StageView, longest: float) -> str:
    evaluation = run.by_name.get(f"{stage.name}.eval")
    facts = [f"<span>{text(stage.kind)}</span>"]
    if stage.planned.get("steps"):
        facts.append(f"<span>{count(stage.planned['steps'])} steps</span>")
    if stage.seconds:
        facts.append(f"<span>{_time(stage)}</span>")
    if evaluation is not None and evaluation.seconds and evaluation.status != "cached":
        facts.append(f"<span>eval {duration(evaluation.seconds)}</span>")
    share = 100 * _seconds(run, stage) / longest
    bar = f'<i style="width:{share:.1f}%"></i>' if share else ""
    return (
        f'<li><div class="who"><b>{text(stage.name)}</b> {chip(stage.status)}</div>'
        f'<div class="what">{" · ".join(facts)}</div>'
        f'<div class="score">{accuracy_line(run, stage.name)}</div>'
        f'<div class="time" aria-hidden="true">{bar}</div></li>'
    )


def _time(stage: StageView) -> str:
    """What it took, now or when it was computed."""
    made = stage.artifact.get("seconds")
    if stage.status == "cached" and made:
        return f"made in {duration(made)}"
    return duration(stage.seconds)
