"""What each stage gained and forgot: held-out accuracy of every model, and the paired difference to its input model."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.report.charts import whisker
from pipeline.report.load import RunView, StageView
from pipeline.report.page import details, number, percent, section, signed, table, text
from pipeline.statistics import Estimate, estimate, paired_difference, pass_at_k


def capability(run: RunView) -> str:
    suites = _suites(run)
    if not suites:
        return ""
    body = "".join(f"<h3>{text(suite)}</h3>{_suite_table(run, suite)}{_family_table(run, suite)}" for suite in suites)
    return section(
        "Capability",
        body,
        "Accuracy on held-out problems in percent, with 95% bootstrap intervals over problems. The change is against "
        "the model that the stage started from, on the same problems (paired); shaded where its interval excludes 0.",
    )


def accuracy_line(run: RunView, stage: str) -> str:
    """pass@1 by suite in a few characters, for the picture of the chain."""
    evaluation = run.evaluation(stage)
    if evaluation is None:
        return ""
    told = []
    for suite in _suites(run):
        if rates := evaluation.rates(suite):
            told.append(f"<span>{text(suite)} <b>{percent(sum(rates.values()) / len(rates), 0)}</b></span>")
    return " ".join(told)


def behaviours(run: RunView) -> str:
    """How the models answer, from the metrics of their evaluations: everything that is not accuracy."""
    evaluated = [
        (stage.name, run.by_name[f"{stage.name}.eval"].metrics)
        for stage in run.main_stages
        if run.evaluation(stage.name)
    ]
    parts = []
    for suite in _suites(run):
        names = _ordered(
            key.removeprefix(f"{suite}/")
            for _, metrics in evaluated
            for key in metrics
            if key.startswith(f"{suite}/") and not _is_accuracy(key)
        )
        rows = [
            [text(name), *(_cell(key, metrics.get(f"{suite}/{key}")) for key in names)] for name, metrics in evaluated
        ]
        if names:
            parts.append(f"<h3>{text(suite)}</h3>" + table(["model", *map(text, names)], rows))
    return section("Behaviour", "".join(parts), "How the models answer held-out problems. Shares in percent.")


def _is_accuracy(key: str) -> bool:
    return key.count("/") > 1 or "@" in key or key.endswith("/problems")


def _cell(key: str, value: float | None) -> str:
    """Shares are told in percent; lengths and counts as they are."""
    is_share = (
        value is not None and 0 <= value <= 1 and not any(word in key for word in ("length", "tokens", "unjudged"))
    )
    return percent(value) if is_share and value is not None else number(value)


def _suites(run: RunView) -> list[str]:
    return _ordered(row["suite"] for stage in run.stages if stage.kind == "evaluate" for row in stage.results)


def _ordered(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def _suite_table(run: RunView, suite: str) -> str:
    found: list[tuple[StageView, dict[str, float], Estimate]] = []
    for stage in run.main_stages:
        evaluation = run.evaluation(stage.name)
        if evaluation is not None and (rates := evaluation.rates(suite)):
            found.append((stage, rates, estimate(list(rates.values()))))
    if not found:
        return ""
    domain = (min(e.low for _, _, e in found), max(e.high for _, _, e in found))
    by_name = {stage.name: rates for stage, rates, _ in found}
    k = _largest_k(run, suite)
    rows = []
    for stage, rates, accuracy in found:
        evaluation = run.by_name[f"{stage.name}.eval"]
        reached = [
            pass_at_k(row["n"], row["c"], k) for row in evaluation.results if row["suite"] == suite and row["n"] >= k
        ]
        rows.append([
            f"{text(stage.name).replace('_', '_<wbr>')}<small>{len(rates)} problems</small>",
            f"<b>{percent(accuracy.mean)}</b> <small>{percent(accuracy.low)} – {percent(accuracy.high)}</small>",
            whisker(accuracy.mean, accuracy.low, accuracy.high, domain),
            _change(stage, rates, by_name),
            f"{percent(sum(reached) / len(reached))}" if reached else "–",
        ])  # fmt: skip
    return table(["model", "pass@1", '<span class="sr">interval</span>', "change", f"pass@{k}"], rows, "capability")


def _change(stage: StageView, rates: dict[str, float], by_name: dict[str, dict[str, float]]) -> str:
    """Against the input model, and against the control of an experiment where the recipe has one."""
    told = [
        _difference(rates, by_name[other], other)
        for other in (stage.input_model, f"{stage.name}_control")
        if other in by_name
    ]
    return "".join(told) or "–"


def _difference(after: dict[str, float], before: dict[str, float], name: str) -> str:
    difference = paired_difference(after, before)
    if difference is None:
        return ""
    direction = "up" if difference.low > 0 else "down" if difference.high < 0 else "level"
    return (
        f'<div><span class="{direction}">{signed(difference.mean)}</span> '
        f"<small>{signed(difference.low)} … {signed(difference.high)}</small> <small>from {text(name)}</small></div>"
    )


def _largest_k(run: RunView, suite: str) -> int:
    """The largest number of responses a problem that every evaluation has (a few may not have been judged)."""
    evaluations = [stage for stage in run.stages if stage.kind == "evaluate"]
    most = [max((row["n"] for row in stage.results if row["suite"] == suite), default=0) for stage in evaluations]
    return min(n for n in most if n)


def _family_table(run: RunView, suite: str) -> str:
    evaluated = [
        (stage.name, run.by_name[f"{stage.name}.eval"].results)
        for stage in run.main_stages
        if run.evaluation(stage.name)
    ]
    families = _ordered(row["family"] for _, results in evaluated for row in results if row["suite"] == suite)
    if len(families) < 2:
        return ""
    rows = []
    for name, results in evaluated:
        cells = []
        for family in families:
            rates = [
                row["c"] / row["n"] for row in results if row["suite"] == suite and row["family"] == family and row["n"]
            ]
            cells.append(percent(sum(rates) / len(rates)) if rates else "–")
        rows.append([text(name), *cells])
    return details("by family", table(["model", *map(text, families)], rows))
