"""Thinking modes and budgets, model by model: who obeys, what an answer is worth in each mode, accuracy against budget.

From `results/modes.jsonl` of the evaluations (stages/evaluate/modes.py), which they have where evaluation.modes or
evaluation.budgets asked for it.
"""

from __future__ import annotations

from typing import Any

from pipeline.report.charts import Series, line_chart
from pipeline.report.load import RunView, StageView, read_rows
from pipeline.report.page import details, percent, section, signed, table, text
from pipeline.statistics import estimate, paired_difference

Rows = list[dict[str, Any]]

MODES = ("thinking", "no_thinking")
NOTE = (
    "Held-out problems asked with flags in positions and turns that no training conversation has; an answer counts as "
    "right only in the mode that was asked for. At once: no flag, the prompt ends with an empty think block, and "
    "nothing is worked out behind it either. Obeyed: reasoning in the block, or an empty block before the answer. "
    "Percent, with 95% intervals over problems; length in tokens."
)
BUDGET_NOTE = (
    "At so many tokens of thinking the engine writes the stop text and closes the block; no model was trained on that. "
    "Noise is that of the plain evaluation, so responses are the same up to the cut."
)


def modes(run: RunView) -> str:
    found = {stage.name: rows for stage in run.main_stages if (rows := _mode_rows(run, stage))}
    if not found:
        return ""
    suites = list(dict.fromkeys(row["suite"] for rows in found.values() for row in rows))
    parts = [_suite_table(suite, found) for suite in suites]
    return section("Thinking modes", "".join(parts) + _patterns(found), NOTE)


def budgets(run: RunView) -> str:
    """A chart a suite, a line a model; nothing where no budget was measured."""
    found = {stage.name: rows for stage in run.main_stages if (rows := _rows_of(run, stage, "budget_"))}
    if not found:
        return ""
    suites = list(dict.fromkeys(row["suite"] for rows in found.values() for row in rows))
    charts, tables = [], []
    for suite in suites:
        curves = {name: _curve([row for row in rows if row["suite"] == suite]) for name, rows in found.items()}
        lines = [
            Series(name, [(float(b), accuracy) for b, accuracy, _ in curve], marks=True)
            for name, curve in curves.items()
        ]
        charts.append(line_chart(f"Accuracy against thinking budget, {suite}", lines, "budget, tokens", is_share=True))
        sizes = sorted({budget for curve in curves.values() for budget, _, _ in curve})
        cells = [[text(name), *_cells(curve, sizes)] for name, curve in curves.items()]
        tables.append(f"<h3>{text(suite)}</h3>" + table(["model", *(f"{size} tokens" for size in sizes)], cells))
    body = f'<div class="charts">{"".join(charts)}</div>' + details("as numbers", "".join(tables))
    return section("Thinking budget", body, BUDGET_NOTE)


def _rows_of(run: RunView, stage: StageView, beginning: str) -> Rows:
    evaluation = run.by_name.get(f"{stage.name}.eval")
    if evaluation is None:
        return []
    path = evaluation.path / "results" / "modes.jsonl"
    return [row for row in read_rows(path) if row["setting"].startswith(beginning)]


def _mode_rows(run: RunView, stage: StageView) -> Rows:
    return [row for row in _rows_of(run, stage, "") if row["setting"] in (*MODES, "at_once")]


def _suite_table(suite: str, found: dict[str, Rows]) -> str:
    head = ["model", "thinking", "length", "obeyed", "no thinking", "length", "obeyed", "at once", "length"]
    rows = []
    for name, of_model in found.items():
        cells = [text(name)]
        for setting in (*MODES, "at_once"):
            mine = [row for row in of_model if (row["suite"], row["setting"]) == (suite, setting)]
            cells += [_accuracy(mine, "c" if setting in MODES else "direct"), _length(mine)]
            cells += [_obeyed(mine)] if setting in MODES else []
        rows.append(cells)
    return f"<h3>{text(suite)}</h3>" + table(head, rows) + _against_at_once(suite, found)


def _against_at_once(suite: str, found: dict[str, Rows]) -> str:
    """Is it worth more than an empty block alone: answers without thinking, against the first model's given at once?"""
    names = list(found)
    first = next((name for name in names if name == "cold_start"), names[0])
    before = _rates([row for row in found[first] if (row["suite"], row["setting"]) == (suite, "at_once")], "direct")
    told = []
    for name in names:
        after = _rates(
            [row for row in found[name] if (row["suite"], row["setting"]) == (suite, "no_thinking")], "direct"
        )
        gap = paired_difference(after, before) if any(after.values()) else None
        if gap is not None:
            interval = f"<small>{signed(gap.low)} … {signed(gap.high)}</small>"
            told.append(f"<li>{text(name)}: <b>{signed(gap.mean)}</b> points {interval}</li>")
    if not told:
        return ""
    return f"<p>Without thinking, against {text(first)}'s answers given at once (paired):</p><ul>{''.join(told)}</ul>"


def _patterns(found: dict[str, Rows]) -> str:
    """Obedience by where the flags stand."""
    flagged = {name: [row for row in rows if row["setting"] in MODES] for name, rows in found.items()}
    patterns = sorted({row["pattern"] for rows in flagged.values() for row in rows})
    rows = [
        [
            text(name),
            *(_obeyed([row for row in mine if row["pattern"] == pattern]) for pattern in patterns),
            _obeyed(mine),
        ]
        for name, mine in flagged.items()
    ]
    return details("obeyed, by where the flags stand", table(["model", *map(text, patterns), "all"], rows))


def _curve(rows: Rows) -> list[tuple[int, float, float]]:
    """(budget, accuracy, mean tokens) in order of budget."""
    sizes = sorted({int(row["setting"].removeprefix("budget_")) for row in rows})
    curve = []
    for size in sizes:
        mine = [row for row in rows if row["setting"] == f"budget_{size}"]
        rates = list(_rates(mine).values())
        if rates:
            curve.append((size, sum(rates) / len(rates), _tokens(mine)))
    return curve


def _cells(curve: list[tuple[int, float, float]], sizes: list[int]) -> list[str]:
    known = {size: f"{percent(accuracy)} <small>{tokens:.0f} tokens</small>" for size, accuracy, tokens in curve}
    return [known.get(size, "–") for size in sizes]


def _rates(rows: Rows, counted: str = "c") -> dict[str, float]:
    """Problem -> share of its judged responses that are right (c), or right without working anything out (direct)."""
    return {row["problem_id"]: row[counted] / row["n"] for row in rows if row["n"]}


def _accuracy(rows: Rows, counted: str = "c") -> str:
    rates = list(_rates(rows, counted).values())
    if not rates:
        return "–"
    found = estimate(rates)
    return f"<b>{percent(found.mean)}</b> <small>{percent(found.low)} – {percent(found.high)}</small>"


def _length(rows: Rows) -> str:
    return f"{_tokens(rows):.1f}" if rows else "–"


def _tokens(rows: Rows) -> float:
    return sum(row["tokens"] for row in rows) / max(sum(row["samples"] for row in rows), 1)


def _obeyed(rows: Rows) -> str:
    samples = sum(row["samples"] for row in rows)
    return percent(sum(row["obeyed"] for row in rows) / samples) if samples else "–"
