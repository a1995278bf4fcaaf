"""What reinforcement learning brought out, and whether it can be believed: emergence, length bias, four questions.

Every number comes from a stage's metrics.jsonl. "Start" and "end" are means over the first and the last fifth of what
was recorded; a behaviour "sets in" at the step at which its moving mean has gone half of the way from start to end, and
only where the way is longer than `MOVED`. Verdicts are rules of thumb with their numbers beside them, never a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.charts import Series, line_chart, smoothed
from pipeline.report.curves import series_of
from pipeline.report.load import RunView, StageView
from pipeline.report.page import count, number, percent, section, table, text

Points = list[tuple[float, float]]

MOVED = 0.03  # of a share or a reward: less is not worth a word
LENGTH_MOVED = 0.05  # of a length, as a share of where it started
COLLAPSED = 0.2  # entropy below this share of its start
TRAINED = ("rl", "ppo")


@dataclass(frozen=True)
class Watched:
    """A row of the emergence table: the first of these metrics that was recorded."""

    name: str
    keys: tuple[str, ...]
    is_share: bool = True


EMERGING = (
    Watched("accuracy on training problems", ("rollout/accuracy",)),
    Watched("accuracy on held-out problems", ("heldout/reasoning/pass@1", "heldout/general/pass@1")),
    Watched("held-out pass@4", ("heldout/reasoning/pass@4", "heldout/general/pass@4")),
    Watched("the other suite, not trained on", ("heldout/general/pass@1",)),
    Watched("format", ("behaviour/format",)),
    Watched("step by step", ("behaviour/reasoned",)),
    Watched("reflection", ("behaviour/reflection",)),
    Watched("right steps", ("steps/right",)),
    Watched("response length, tokens", ("length/mean",), is_share=False),
)


def emergence(run: RunView) -> str:
    """A table and a chart a stage: how each behaviour moved and where it set in."""
    parts = []
    for stage in _trained(run):
        recorded = series_of(stage)
        rows, shares = [], []
        for watched in EMERGING:
            points = next((recorded[key] for key in watched.keys if key in recorded), None)
            if points is None:
                continue
            rows.append(_emerging(watched, points))
            if watched.is_share and watched.name not in ("held-out pass@4", "right steps"):
                shares.append(Series(watched.name, points, marks=len(points) <= 12))
        if rows:
            charts = line_chart("Shares of responses", shares, is_share=True) + line_chart(
                "Response length, tokens", [Series("all", recorded.get("length/mean", []))]
            )
            body = table(["", "start", "end", "sets in at step"], rows, "plain")
            parts.append(f'<h3>{text(stage.name)}</h3>{body}<div class="charts">{charts}</div>')
    note = (
        "How behaviour moved while a policy was trained on rewards: means of the first and last fifth of the steps, "
        "and the step at which half of the way was done. Shares in percent."
    )
    return section("Emergence", "".join(parts), note)


def questions(run: RunView) -> str:
    """Reward hacking, length, entropy, wasted tokens: asked of every stage that was trained on rewards."""
    parts = []
    for stage in _trained(run):
        recorded = series_of(stage)
        asked = [_reward_and_accuracy(recorded), _length_and_accuracy(recorded), _entropy(recorded), _wasted(stage)]
        rows = [[question, f'<span class="{tone}">{verdict}</span>', told] for question, verdict, tone, told in
                (item for item in asked if item)]  # fmt: skip
        if rows:
            parts.append(f"<h3>{text(stage.name)}</h3>" + table(["", "", "as measured"], rows, "plain questions"))
    return section("Can it be believed?", "".join(parts), "Start and end as in Emergence; held-out is the dev split.")


def length_bias(run: RunView) -> str:
    """Length of right and of wrong responses, stage by stage: what the reduction of the token loss does to them."""
    rows, right, wrong = [], [], []
    for stage in _trained(run):
        recorded = series_of(stage)
        if "length/right" not in recorded or "length/wrong" not in recorded:
            continue
        ends = [ends_of(recorded[key]) for key in ("length/right", "length/wrong")]
        rows.append([
            f"{text(stage.name)} <small>{text(reduction(stage))}</small>",
            *(f"{start:.1f} → <b>{end:.1f}</b>" for start, end in ends),
            f"{ends[1][1] - ends[0][1]:+.1f}".replace("-", "−"),
        ])  # fmt: skip
        right.append(Series(stage.name, recorded["length/right"]))
        wrong.append(Series(stage.name, recorded["length/wrong"]))
    charts = line_chart("Wrong responses, tokens", wrong) + line_chart("Right responses, tokens", right)
    body = table(["", "right", "wrong", "wrong minus right at the end"], rows, "plain") if rows else ""
    note = (
        "Tokens at the start and at the end. Under sequence_mean a wrong response costs less a token the longer it is; "
        "constant_length takes that away (arXiv:2503.20783). pipeline=length_bias runs both from one model and seed."
    )
    return section("Length of right and wrong responses", body + f'<div class="charts">{charts}</div>' if rows else "",
                   note)  # fmt: skip


def reduction(stage: StageView) -> str:
    """`algorithm.reduction` of the stage's resolved config; "" where there is none."""
    path = stage.path / "config.yaml"
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.strip().startswith("reduction:")), "")


def ends_of(points: Points) -> tuple[float, float]:
    """Means over the first and over the last fifth, of one point at least."""
    width = max(1, len(points) // 5)
    values = [y for _, y in points]
    return sum(values[:width]) / width, sum(values[-width:]) / width


def sets_in(points: Points, least: float) -> float | None:
    """The step at which half of the way from start to end is done; None where the way is shorter than `least`."""
    start, end = ends_of(points)
    if abs(end - start) < least:
        return None
    middle, rises = (start + end) / 2, end > start
    line = smoothed(points) or points
    return next((x for x, y in line if (y >= middle if rises else y <= middle)), None)


def _trained(run: RunView) -> list[StageView]:
    return [stage for stage in run.main_stages if stage.kind in TRAINED and stage.rows]


def _emerging(watched: Watched, points: Points) -> list[str]:
    start, end = ends_of(points)
    least = MOVED if watched.is_share else LENGTH_MOVED * abs(start)
    step = sets_in(points, least)
    show = percent if watched.is_share else number
    return [text(watched.name), show(start), f"<b>{show(end)}</b>", "does not move" if step is None else count(step)]


Answer = tuple[str, str, str, str]  # question, verdict, class, numbers


def _heldout(recorded: dict[str, Points]) -> tuple[float, float] | None:
    key = next((key for key in ("heldout/reasoning/pass@1", "heldout/general/pass@1") if key in recorded), None)
    return ends_of(recorded[key]) if key else None


def _reward_and_accuracy(recorded: dict[str, Points]) -> Answer | None:
    question, heldout = "Did reward and held-out accuracy part ways?", _heldout(recorded)
    if "reward/mean" not in recorded or heldout is None:
        return None
    start, end = ends_of(recorded["reward/mean"])
    told = f"reward {number(start)} → {number(end)}, held-out accuracy {percent(heldout[0])} → {percent(heldout[1])}"
    gained, learnt = end - start, heldout[1] - heldout[0]
    if gained > MOVED and learnt < -MOVED:
        return question, "yes: reward rose, accuracy fell", "down", told
    if gained > 2 * MOVED and learnt < MOVED:
        return question, "perhaps: reward rose, accuracy did not", "down", told
    return question, "no" if gained > MOVED else "no: reward hardly rose", "level", told


def _length_and_accuracy(recorded: dict[str, Points]) -> Answer | None:
    question, heldout = "Did length grow without accuracy?", _heldout(recorded)
    if "length/mean" not in recorded or heldout is None:
        return None
    start, end = ends_of(recorded["length/mean"])
    told = f"length {number(start)} → {number(end)} tokens, held-out {percent(heldout[0])} → {percent(heldout[1])}"
    grew, learnt = end > start * (1 + LENGTH_MOVED), heldout[1] - heldout[0] > MOVED
    verdict = "yes" if grew and not learnt else "no: both grew" if grew else "no: it did not grow"
    return question, verdict, "down" if grew and not learnt else "level", told


def _entropy(recorded: dict[str, Points]) -> Answer | None:
    if "train/entropy" not in recorded:
        return None
    start, end = ends_of(recorded["train/entropy"])
    collapsed = end < COLLAPSED * start
    told = f"{number(start)} → {number(end)} nats a token; collapse is less than {percent(COLLAPSED, 0)}% of the start"
    return "Did entropy collapse?", "yes" if collapsed else "no", "down" if collapsed else "level", told


def _wasted(stage: StageView) -> Answer | None:
    """Tokens of groups whose responses were all rewarded alike: sampled, paid for, and without a signal."""
    rollouts = [
        row for row in stage.rows if row.get("groups/constant_tokens") is not None and row.get("rollout/tokens")
    ]
    total = sum(row["rollout/tokens"] for row in rollouts)
    if not total:
        return None
    wasted = sum(row["groups/constant_tokens"] * row["rollout/tokens"] for row in rollouts)
    right = sum(row.get("groups/all_right") or 0.0 for row in rollouts) / len(rollouts)
    wrong = sum(row.get("groups/all_wrong") or 0.0 for row in rollouts) / len(rollouts)
    told = (
        f"{count(wasted)} of {count(total)} sampled tokens; of the groups {percent(right)}% were all right, "
        f"{percent(wrong)}% all wrong"
    )
    verdict, tone = f"{percent(wasted / total)}%", "down" if wasted > total / 2 else "level"
    return "How many tokens went to groups without a signal?", verdict, tone, told
