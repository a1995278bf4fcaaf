"""The report on preference rewards: accuracy of the reward model, and verdicts on curves whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.report.load import RunView, StageView
from pipeline.report.preferences import parted, preferences

JUDGED = {
    "pairs/accuracy": 0.92, "pairs/accuracy_low": 0.9, "pairs/accuracy_high": 0.94, "pairs/number": 400.0,
    "pairs/helpfulness/accuracy": 0.95, "pairs/helpfulness/accuracy_low": 0.93,
    "pairs/helpfulness/accuracy_high": 0.97, "pairs/helpfulness/number": 300.0,
    "pairs/helpfulness/off_topic/accuracy": 0.88, "length/longer_is_chosen": 0.48, "length/correlation": -0.25,
    "data/epochs": 1.5,
}  # fmt: skip


def stage(folder: Path, name: str, metrics: dict, rows: list[dict]) -> StageView:
    path = folder / name
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return StageView(name, "rl", "ran", 1.0, metrics, "", path, {}, {})


def view(*stages: StageView) -> RunView:
    return RunView("run", "r1_style", "done", 1.0, 0.0, "", {}, [], list(stages))


def watched(folder: Path, score: tuple, rule: tuple, agreement: tuple, name: str = "general_rl", **more) -> StageView:
    """Evaluations at steps 1, 21 and after step 40."""
    keys = [f"preference/helpful/{key}" for key in ("score", "rule", "agreement")]
    rows = [
        {"step": step, "reward/helpfulness": 0.5, "reward/mean": 1.0, **dict(zip(keys, values, strict=True))}
        for step, values in zip((1, 21), zip(score, rule, agreement, strict=False), strict=False)
    ]
    last = dict(zip(keys, (score[2], rule[2], agreement[2]), strict=True))
    return stage(folder, name, {**last, "train/steps": 40, **more}, rows)


def test_accuracy_by_axis_and_length(tmp_path: Path) -> None:
    html = preferences(view(stage(tmp_path, "reward_model", JUDGED, [])))
    assert html.index("all pairs") < html.index(">helpfulness<")
    assert "<b>95.0</b> <small>93.0 – 97.0</small>" in html and html.count("off topic 88") == 1
    assert "choosing the longer response would be right for 48.0%" in html
    assert "correlation of reward and length -0.25" in html


@pytest.mark.parametrize(
    ("score", "rule", "agreement", "told", "tone"),
    [
        ((0.4, 0.5, 0.7), (0.3, 0.5, 0.6), (0.8, 0.9, 0.9), ">no<", "level"),
        ((0.4, 0.6, 0.9), (0.6, 0.5, 0.3), (0.8, 0.7, 0.6), "yes: the score rose, the rule fell", "down"),
        ((0.4, 0.6, 0.9), (0.5, 0.5, 0.51), (0.8, 0.7, 0.6), "perhaps: the score rose, the rule did not", "down"),
        ((0.4, 0.6, 0.9), (0.3, 0.5, 0.6), (0.8, 0.6, 0.4), "it prefers what the rule calls wrong", "down"),
        ((0.4, 0.6, 0.9), (0.3, 0.8, 0.6), (0.8, 0.8, 0.8), "the rule was best at step 21", "down"),
        ((0.4, 0.4, 0.41), (0.3, 0.3, 0.3), (0.8, 0.8, 0.8), "no: the score hardly rose", "level"),
    ],
)
def test_verdicts_on_gaming(tmp_path: Path, score, rule, agreement, told, tone) -> None:
    html = preferences(view(watched(tmp_path, score, rule, agreement)))
    assert told in html and f'<span class="{tone}">' in html
    assert "Parts of the reward" in html and "helpful, held-out" in html
    assert f"rule {100 * rule[0]:.1f} → {100 * rule[2]:.1f}" in html  # the evaluation after the last step counts


def test_a_rule_that_is_rewarded_is_no_witness(tmp_path: Path) -> None:
    known = ((0.4, 0.5, 0.7), (0.3, 0.5, 0.6), (0.8, 0.9, 0.9))
    assert "does not watch from outside" not in preferences(view(watched(tmp_path, *known)))
    rewarded = watched(tmp_path, *known, name="other", **{"preference/helpful/rule_is_rewarded": 1.0})
    assert "does not watch from outside" in preferences(view(rewarded))


def test_nothing_to_say_where_nothing_was_preferred(tmp_path: Path) -> None:
    assert (
        preferences(view(stage(tmp_path, "reasoning_rl", {"reward/mean": 1.0}, [{"step": 1, "reward/mean": 1}]))) == ""
    )
    assert parted({"score": [], "rule": [], "agreement": []})[1] == "not measured"
