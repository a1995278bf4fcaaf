"""Curves of the stages that train, from their metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report.charts import Series, line_chart
from pipeline.report.load import RunView, StageView
from pipeline.report.page import details, section, text


@dataclass
class Chart:
    """A chart of some metrics; those that a stage did not record are left out."""

    title: str
    keys: dict[str, str]  # metric -> name in the legend; a key that ends in * takes all with that beginning
    is_share: bool = False


MAIN = (
    Chart("Reward", {"reward/mean": "mean"}),
    Chart("Accuracy in training", {"rollout/accuracy": "sampled"}, True),
    Chart("Held-out accuracy (dev)", {"heldout/*/pass@1": ""}, True),
    Chart("Response length, tokens", {"length/mean": "all", "length/right": "right", "length/wrong": "wrong"}),
    Chart("Loss", {"train/loss": "loss"}),
    Chart("KL to the reference, nats a token", {"train/kl": "k3"}),
    Chart("Clipped tokens", {"train/clip_low": "below", "train/clip_high": "above"}, True),
    Chart("Value loss", {"critic/loss": "critic"}),
    Chart("Variance of returns that the critic explains", {"critic/explained_variance": "critic"}),
    Chart("Entropy, nats a token", {"train/entropy": "policy"}),
    Chart("Groups without a signal", {"groups/all_right": "all right", "groups/all_wrong": "all wrong"}, True),
    Chart("Behaviour in training", {"behaviour/*": ""}, True),
    Chart("Gradient norm", {"train/grad_norm": "before clipping"}),
)


def curves(run: RunView) -> str:
    """RL stages first in sight, the others folded."""
    parts = []
    for stage in run.main_stages:
        charts = stage_charts(stage)
        if not charts:
            continue
        title = f"<b>{text(stage.name)}</b> <small>{text(stage.kind)}</small>"
        parts.append(details(title, charts, is_open=stage.kind in ("rl", "ppo")))
    return section("Curves", "".join(parts), "Thin: as recorded. Bold: moving mean over a tenth of the steps.")


def stage_charts(stage: StageView) -> str:
    recorded = series_of(stage)
    if not recorded:
        return ""
    shown: set[str] = set()
    main = []
    for chart in MAIN:
        lines = {key: name for pattern, name in chart.keys.items() for key, name in _matching(pattern, name, recorded)}
        shown |= set(lines)
        main.append(
            line_chart(
                chart.title, [_series(name, recorded[key]) for key, name in lines.items()], is_share=chart.is_share
            )
        )
    others = [
        line_chart(key, [_series("last", points)]) for key, points in sorted(recorded.items()) if key not in shown
    ]
    everything = (
        details(f"{len(others)} more recorded series", f'<div class="charts">{"".join(others)}</div>') if others else ""
    )
    drawn = "".join(main)
    return (f'<div class="charts">{drawn}</div>' if drawn else "") + everything


def series_of(stage: StageView) -> dict[str, list[tuple[float, float]]]:
    """metric -> (step, value), without what was not finite or was recorded at one step only."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in stage.rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                found.setdefault(key, []).append((row["step"], float(value)))
    return {key: points for key, points in found.items() if points[0][0] != points[-1][0]}


def _matching(pattern: str, name: str, recorded: dict[str, list[tuple[float, float]]]) -> list[tuple[str, str]]:
    """(metric, its name in the legend); what the star stands for is the name where the chart gives none."""
    if "*" not in pattern:
        return [(pattern, name)] if pattern in recorded else []
    head, _, tail = pattern.partition("*")
    hits = [key for key in recorded if key.startswith(head) and key.endswith(tail)]
    return [(key, key[len(head) : len(key) - len(tail)]) for key in hits]


def _series(name: str, points: list[tuple[float, float]]) -> Series:
    return Series(name, points, marks=len(points) <= 12)
