"""Where a behaviour sets in, and the answers to the four questions, on series whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.report.emergence import emergence, ends_of, length_bias, questions, reduction, sets_in
from pipeline.report.load import RunView, StageView


def stage(folder: Path, name: str = "reasoning_rl", kind: str = "rl", steps: int = 40, **curves) -> StageView:
    """A stage whose metrics are functions of progress from 0 to 1."""
    folder = folder / name
    folder.mkdir()
    rows = [{"step": i, **{key: curve(i / (steps - 1)) for key, curve in curves.items()}} for i in range(steps)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return StageView(name, kind, "ran", 1.0, {}, "", folder, {}, {})


def view(*stages: StageView) -> RunView:
    return RunView("run", "r1_zero", "done", 1.0, 0.0, "", {}, [], list(stages))


def healthy(**changed) -> dict:
    return {
        "reward/mean": lambda t: 0.5 + 0.5 * t,
        "heldout/reasoning/pass@1": lambda t: 0.3 + 0.4 * t,
        "length/mean": lambda t: 20 + 10 * t,
        "train/entropy": lambda t: 0.5 - 0.2 * t,
        "groups/constant_tokens": lambda t: 0.25,
        "rollout/tokens": lambda t: 1000,
        "groups/all_right": lambda t: 0.125,
        "groups/all_wrong": lambda t: 0.125,
        **changed,
    }


def test_a_behaviour_sets_in_where_half_of_the_way_is_done() -> None:
    jump = [(step, 0.1 if step < 70 else 0.8) for step in range(100)]
    assert ends_of(jump) == pytest.approx((0.1, 0.8))
    assert sets_in(jump, 0.03) == pytest.approx(70, abs=3)
    falls = [(step, 1 - step / 100) for step in range(100)]
    assert sets_in(falls, 0.03) == pytest.approx(50, abs=3)
    assert sets_in([(step, 0.5 + 0.001 * (step % 2)) for step in range(100)], 0.03) is None


def test_emergence_of_any_rl_stage(tmp_path: Path) -> None:
    curves = healthy(**{
        "behaviour/reflection": lambda t: 0.0 if t < 0.75 else 0.4,
        "behaviour/reasoned": lambda t: 0.9,
    })  # fmt: skip
    html = emergence(view(stage(tmp_path, **curves), stage(tmp_path, "cold_start", "sft", **curves)))
    assert "reasoning_rl" in html and "cold_start" not in html
    row = html.split("reflection</th>")[1].split("</tr>")[0]
    assert "<td>0.0</td><td><b>40.0</b></td><td>30</td>" in row
    assert "does not move" in html.split("step by step</th>")[1].split("</tr>")[0]


def test_a_healthy_run_is_told_so(tmp_path: Path) -> None:
    html = questions(view(stage(tmp_path, **healthy())))
    assert html.count('class="level"') == 4 and 'class="down"' not in html
    assert "25.0%" in html and "10,000 of 40,000 sampled tokens" in html and "12.5% were all right" in html


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"heldout/reasoning/pass@1": lambda t: 0.5 - 0.2 * t}, "yes: reward rose, accuracy fell"),
        ({"heldout/reasoning/pass@1": lambda t: 0.5}, "perhaps: reward rose, accuracy did not"),
        ({"train/entropy": lambda t: 0.5 * (1 - t) ** 4}, "collapse is less than"),
        ({"groups/constant_tokens": lambda t: 0.9}, "90.0%"),
    ],
)
def test_what_cannot_be_believed_stands_out(tmp_path: Path, changed: dict, told: str) -> None:
    html = questions(view(stage(tmp_path, **healthy(**changed))))
    assert told in html and 'class="down"' in html


def test_length_that_grew_without_accuracy(tmp_path: Path) -> None:
    curves = healthy(**{"heldout/reasoning/pass@1": lambda t: 0.5, "reward/mean": lambda t: 0.5})
    row = questions(view(stage(tmp_path, **curves))).split("Did length grow without accuracy?")[1].split("</tr>")[0]
    assert ">yes<" in row and "accuracy" not in row


def test_length_bias_side_by_side(tmp_path: Path) -> None:
    one = stage(tmp_path, "sequence_mean_rl", **{"length/right": lambda t: 20, "length/wrong": lambda t: 20 + 20 * t})
    two = stage(tmp_path, "constant_length_rl", **{"length/right": lambda t: 20, "length/wrong": lambda t: 18})
    (one.path / "config.yaml").write_text("algorithm:\n  name: grpo\n  reduction: sequence_mean\n")
    assert reduction(one) == "sequence_mean" and reduction(two) == ""
    html = length_bias(view(one, two))
    assert "<b>38.2</b>" in html and "+18.2" in html and "−2.0" in html
    assert length_bias(view(stage(tmp_path, "other", **{"reward/mean": lambda t: t}))) == ""
