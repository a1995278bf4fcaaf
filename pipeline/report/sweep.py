"""report.html of a sweep: all jobs, what each axis does, and whether the best can be told from the next.

Effects are differences between jobs that differ in one axis alone. Of accuracies they are paired over problems and
their intervals bootstrapped over problems; of length, KL and time they are paired over jobs, with a t interval where
there are at least three pairs. Axes named `seed` are averaged over: intervals over seeds stand in a table of their own.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev

from pipeline.report.charts import Series, line_chart
from pipeline.report.curves import series_of
from pipeline.report.page import chip, details, duration, number, page, percent, section, signed, table, text
from pipeline.report.sweep_load import JobView, SweepView, axis_pairs, interaction, load_sweep, mean_rates
from pipeline.statistics import Estimate, estimate, paired_difference

MOST_LINES = 12  # of one chart
# two-sided 95% quantiles of Student's t, by degrees of freedom; beyond them the normal one
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
CURVES = ("reward/mean", "rollout/accuracy", "length/mean", "train/kl", "train/entropy")
SCALARS = {"length": "length/mean", "KL": "train/kl", "seconds": "seconds"}


def write_sweep_report(folder: Path) -> Path:
    """Write `<folder>/report.html` from sweep.json and the jobs' folders; returns its path."""
    view = load_sweep(folder)
    body = f"<h1>{text(view.name)}</h1>\n<p><code>{text(view.command)}</code></p>\n"
    if view.done:
        body += best(view) + jobs_table(view) + seeds(view) + effects(view) + interactions(view) + curves(view)
    else:
        body += jobs_table(view)
    path = folder / "report.html"
    temporary = path.with_name(".report.html.tmp")
    temporary.write_text(page(view.name, body), encoding="utf-8")
    temporary.replace(path)
    return path


def jobs_table(view: SweepView) -> str:
    head = ["job", "status", *(f"{text(stage)}<br>{text(suite)} %" for stage, suite in _outcomes(view)), "time"]
    rows = []
    for job in view.jobs:
        label = f'<a href="{text(job.name)}/report.html">{text(job.name)}</a>' if job.run else text(job.name)
        answers = [list(job.rates(*outcome).values()) for outcome in _outcomes(view)] if job.run else []
        cells = [_accuracy(estimate(rates) if rates else None) for rates in answers]
        cells += ["–"] * (len(_outcomes(view)) - len(cells))
        why = details(chip(job.status), f"<pre>{text(job.message)}</pre>") if job.message else chip(job.status)
        rows.append([label, why, *cells, duration(job.run.seconds) if job.run else "–"])
    return section("Jobs", table(head, rows), "Held-out pass@1 with its 95% interval over problems.")


def best(view: SweepView) -> str:
    """The best setting by the last evaluated stage, seeds put together, and whether the next one is worse."""
    parts = []
    for stage, suite in _outcomes(view)[-len(_suites(view)) :] if _outcomes(view) else []:
        ranked = sorted(
            ((name, rates) for name, rates in _settings(view, stage, suite).items() if rates),
            key=lambda item: -mean(item[1].values()),
        )
        if len(ranked) < 2:
            continue
        (first, top), (second, next_one) = ranked[:2]
        found = paired_difference(top, next_one)
        if found is None:
            continue
        apart = "can be told apart" if found.low > 0 else "cannot be told apart"
        parts.append(
            f"<li>{text(suite)} after {text(stage)}: <b>{text(first)}</b> ({percent(mean(top.values()))}%), then "
            f"{text(second)} ({percent(mean(next_one.values()))}%): {_interval(found)} points, they {apart}.</li>"
        )
    note = "Of the best among several, the accuracy is a little flattering: it was chosen for being high."
    return section("Best and runner-up", f"<ul>{''.join(parts)}</ul>" if parts else "", note)


def seeds(view: SweepView) -> str:
    """Mean and interval over seeds of every setting of the other axes."""
    if len(view.axes.get("seed", [])) < 2:
        return ""
    rows = []
    for name, jobs in _by_setting(view).items():
        cells = []
        for outcome in _outcomes(view):
            values = [mean(rates.values()) for job in jobs if (rates := job.rates(*outcome))]
            cells.append(_accuracy(over_pairs(values)))
        rows.append([text(name), str(len(jobs)), *cells])
    head = ["setting", "seeds", *(f"{text(stage)}<br>{text(suite)} %" for stage, suite in _outcomes(view))]
    return section("Over seeds", table(head, rows), "Mean over seeds, with a 95% t interval over them.")


def effects(view: SweepView) -> str:
    parts = []
    for axis, values in view.axes.items():
        rows = [_effect(view, axis, values[0], other) for other in values[1:]]
        head = [f"{text(axis)}", "pairs", *(f"{text(s)}<br>{text(suite)}" for s, suite in _outcomes(view))]
        head += [f"{text(stage)}<br>{name}" for stage in view.trained for name in SCALARS]
        if axis != "seed" and any(row[1] != "0" for row in rows):
            parts.append(table(head, rows))
    note = "Each value against the first, over jobs that differ in this axis alone. Accuracies in points."
    return section("Main effects", "".join(parts), note)


def _effect(view: SweepView, axis: str, first: str, other: str) -> list[str]:
    pairs = view.pairs(axis, other, first)
    cells = []
    for outcome in _outcomes(view):
        after = mean_rates([one.rates(*outcome) for one, _ in pairs])
        before = mean_rates([one.rates(*outcome) for _, one in pairs])
        found = paired_difference(after, before)
        cells.append(_interval(found) if found else "–")
    for stage in view.trained:
        for metric in SCALARS.values():
            values = [(scalar(one, stage, metric), scalar(two, stage, metric)) for one, two in pairs]
            changes = [after - before for after, before in values if after is not None and before is not None]
            cells.append(_change(over_pairs(changes)))
    return [f"{text(other)} − {text(first)}", str(len(pairs)), *cells]


def interactions(view: SweepView) -> str:
    rows = []
    for axes in axis_pairs(view):
        found = [interaction(view, axes, *outcome) for outcome in _outcomes(view)]
        rows.append([f"{text(axes[0])} × {text(axes[1])}", *(_interval(one) if one else "–" for one in found)])
    head = ["axes", *(f"{text(stage)}<br>{text(suite)}" for stage, suite in _outcomes(view))]
    note = (
        "What the step from the first to the last value of one axis gains more at the last value of the other than at "
        "its first, in points. An interval that spans 0: no interaction seen."
    )
    return section("Interactions", table(head, rows), note)


def curves(view: SweepView) -> str:
    """Reward, length, KL and entropy of every job, one line each."""
    parts = []
    for name in view.trained:
        recorded = {job.name: series_of(stage) for job in view.done if (stage := job.stage(name))}
        charts = []
        for key in CURVES:
            lines = [Series(job, found[key]) for job, found in recorded.items() if key in found][:MOST_LINES]
            charts.append(line_chart(key, lines))
        if any(charts):
            parts.append(details(f"<b>{text(name)}</b>", f'<div class="charts">{"".join(charts)}</div>', is_open=True))
    return section("Curves", "".join(parts))


def over_pairs(values: list[float]) -> Estimate | None:
    """Mean with a 95% t interval; without one (infinite) for fewer than three values."""
    if not values:
        return None
    if len(values) < 3:
        return Estimate(mean(values), -math.inf, math.inf, len(values))
    quantile = STUDENT[len(values) - 2] if len(values) - 2 < len(STUDENT) else 1.96
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(mean(values), mean(values) - half, mean(values) + half, len(values))


def scalar(job: JobView, stage: str, metric: str) -> float | None:
    """Mean length or KL over the last tenth of a stage's steps, or its seconds when it was trained."""
    view = job.stage(stage)
    if view is None:
        return None
    if metric == "seconds":
        return view.artifact.get("seconds")
    found = series_of(view).get(metric)
    return mean(value for _, value in found[-max(1, len(found) // 10) :]) if found else None


def _outcomes(view: SweepView) -> list[tuple[str, str]]:
    """(stage, suite) of every evaluation that the axes may have changed."""
    return [(stage, suite) for stage in view.evaluated for suite in view.suites(stage)] if view.done else []


def _suites(view: SweepView) -> list[str]:
    return list(dict.fromkeys(suite for _, suite in _outcomes(view)))


def _by_setting(view: SweepView) -> dict[str, list[JobView]]:
    """Jobs that differ in nothing but the seed."""
    found: dict[str, list[JobView]] = {}
    for job in view.done:
        setting = ", ".join(f"{key}={value}" for key, value in job.values.items() if key != "seed")
        found.setdefault(setting or "the base", []).append(job)
    return found


def _settings(view: SweepView, stage: str, suite: str) -> dict[str, dict[str, float]]:
    return {name: mean_rates([job.rates(stage, suite) for job in jobs]) for name, jobs in _by_setting(view).items()}


def _accuracy(found: Estimate | None) -> str:
    if found is None:
        return "–"
    bounds = f" <small>({percent(found.low)}–{percent(found.high)})</small>" if math.isfinite(found.low) else ""
    return f"{percent(found.mean)}{bounds}"


def _interval(found: Estimate) -> str:
    return f"{signed(found.mean)} <small>[{signed(found.low)}, {signed(found.high)}]</small>"


def _change(found: Estimate | None) -> str:
    if found is None:
        return "–"
    bounds = f" <small>[{number(found.low)}, {number(found.high)}]</small>" if math.isfinite(found.low) else ""
    return f"{'+' if found.mean > 0 else ''}{number(found.mean)}{bounds}"
