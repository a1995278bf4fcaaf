"""Preference rewards: how well the reward model knows preferences, what each part of the reward did, and gaming.

A reward model is one more thing to be fooled. Its score stands beside an independent rule on the same held-out prompts
at every evaluation of a stage that was trained on it; verdicts are rules of thumb with their numbers, never a test.
"""

from __future__ import annotations

from pipeline.report.charts import Series, line_chart, whisker
from pipeline.report.curves import series_of
from pipeline.report.emergence import MOVED, Points, ends_of
from pipeline.report.load import RunView, StageView
from pipeline.report.page import number, percent, section, table, text

WATCHED = {"score": "reward model", "rule": "rule", "agreement": "agreement on pairs"}
PARTS = ("accuracy", "format", "language", "helpfulness", "harmlessness")


def preferences(run: RunView) -> str:
    """Nothing unless a stage trained a reward model, or was trained on one."""
    body = "".join(_reward_model(stage) for stage in run.main_stages if "pairs/accuracy" in stage.metrics)
    body += "".join(_parts(stage) for stage in run.main_stages if _suites(stage))
    body += "".join(_watched(stage, suite) for stage in run.main_stages for suite in _suites(stage))
    note = (
        "Pairwise accuracy of the reward model on held-out prompts, with 95% bootstrap intervals over prompts. The "
        "score of a response is the chance that it is preferred to an average one, as the model has it: helpfulness is "
        "judged on the answer after the thinking, harmlessness on the whole response. Shares in percent."
    )
    return section("Preference rewards", body, note)


def _reward_model(stage: StageView) -> str:
    """Accuracy by axis and by what was wrong with the rejected response, and what length alone would tell."""
    known = {key: value for key, value in stage.metrics.items() if value is not None}
    rows = []
    for name in sorted(key.removesuffix("/accuracy_low") for key in known if key.endswith("/accuracy_low")):
        mean, low, high = (known[f"{name}/accuracy{end}"] for end in ("", "_low", "_high"))
        faults = [
            f"{text(key.split('/')[2].replace('_', ' '))} {percent(value, 0)}"
            for key, value in known.items()
            if key.startswith(f"{name}/") and name.count("/") == 1 and key.count("/") == 3
        ]
        rows.append([
            text(name.partition("/")[2] or "all pairs"),
            number(known.get(f"{name}/number")),
            f"<b>{percent(mean)}</b> <small>{percent(low)} – {percent(high)}</small>",
            whisker(mean, low, high, (0.5, 1.0)),
            ", ".join(faults) or "–",
        ])  # fmt: skip
    told = [
        f"{words} {percent(known[key]) + '%' if is_share else number(known[key])}"
        for key, words, is_share in (
            ("length/longer_is_chosen", "choosing the longer response would be right for", True),
            ("length/correlation", "correlation of reward and length", False),
            ("data/epochs", "epochs over the pairs", False),
        )
        if key in known
    ]
    head = ["", "pairs", "accuracy", '<span class="sr">interval</span>', "by what is wrong with the rejected one"]
    return f"<h3>{text(stage.name)}</h3>{table(head, rows)}<p>{text('; '.join(told))}.</p>"


def _parts(stage: StageView) -> str:
    """Each part of the reward, of the training problems that name it."""
    recorded = series_of(stage)
    lines = [
        Series(key.removeprefix("reward/"), points)
        for key, points in sorted(recorded.items())
        if key.startswith("reward/") and key.removeprefix("reward/") in PARTS
    ]
    chart = line_chart("Parts of the reward", lines, is_share=True)
    return f'<h3>{text(stage.name)}</h3><div class="charts">{chart}</div>' if chart else ""


def _suites(stage: StageView) -> list[str]:
    """The suites whose score was watched."""
    return sorted({key.split("/")[1] for key in stage.metrics if key.startswith("preference/")})


def _watched(stage: StageView, suite: str) -> str:
    """The curves of one suite, and whether score and rule parted ways."""
    series = {name: points_of(stage, f"preference/{suite}/{name}") for name in WATCHED}
    lines = [Series(WATCHED[name], points, marks=True) for name, points in series.items() if points]
    chart = line_chart(f"{stage.name}: {suite}, held-out", lines, is_share=True)
    question, verdict, tone, told = parted(series)
    if stage.metrics.get(f"preference/{suite}/rule_is_rewarded"):
        told += "; this rule is part of the reward, so it does not watch from outside"
    row = [question, f'<span class="{tone}">{verdict}</span>', told]
    return f'<div class="charts">{chart}</div>{table([text(suite), "", "as measured"], [row], "plain questions")}'


def points_of(stage: StageView, key: str) -> Points:
    """(step, value) of each evaluation in the stage, the last one after its last step included."""
    points = [(float(row["step"]), float(row[key])) for row in stage.rows if row.get(key) is not None]
    last = stage.metrics.get(key)
    steps = stage.metrics.get("train/steps")
    if last is not None and steps is not None and (not points or points[-1][0] < steps):
        points.append((float(steps), float(last)))
    return points


def parted(series: dict[str, Points]) -> tuple[str, str, str, str]:
    """(question, verdict, class, numbers): did the reward model's score and the rule part ways?"""
    question = "Did the reward model's score and the rule part ways?"
    if not series["score"] or not series["rule"]:
        return question, "not measured", "level", "–"
    (score, score_end), (rule, rule_end) = ends_of(series["score"]), ends_of(series["rule"])
    told = f"score {percent(score)} → {percent(score_end)}, rule {percent(rule)} → {percent(rule_end)}"
    agreement = series["agreement"][-1][1] if series["agreement"] else None
    if agreement is not None:
        told += f"; of a right and a wrong response it prefers the right one in {percent(agreement, 0)}% at the end"
    rose, moved = score_end - score, rule_end - rule
    if rose > MOVED and moved < -MOVED:
        return question, "yes: the score rose, the rule fell", "down", told
    if agreement is not None and agreement < 0.5:
        return question, "yes: it prefers what the rule calls wrong", "down", told
    if rose > 2 * MOVED and moved < MOVED:
        return question, "perhaps: the score rose, the rule did not", "down", told
    peak = max(value for _, value in series["rule"])
    if peak - rule_end > 2 * MOVED and rose > MOVED:
        step = next(step for step, value in series["rule"] if value == peak)
        return question, f"perhaps: the rule was best at step {number(step)}", "down", told
    return question, "no" if rose > MOVED else "no: the score hardly rose", "level", told
