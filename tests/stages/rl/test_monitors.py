"""What is watched on held-out problems: pass@k for small k, behaviour, and suites that are not trained on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stages.parts.data.problems import load_problems, save_problems
from stages.parts.experience.order import training_problems
from stages.rl.run import run
from tests.stages.digits import digit_inputs
from tests.stages.rl.test_run import CONFIG, context

CFG = replace(CONFIG, steps=2, monitor_samples=4)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The digits, and a second suite of the same problems that the stage does not train on."""
    inputs = digit_inputs(tmp_path_factory.mktemp("monitors"))
    folder = inputs["problems"].path
    splits = {split: load_problems(folder, split) for split in ("train", "dev", "test")}
    for problems in splits.values():
        problems += [replace(problem, id=f"other-{problem.id}", suite="general") for problem in problems]
    save_problems(folder, splits)
    return inputs


def test_held_out_problems_are_of_every_suite(inputs) -> None:
    pools, heldout = training_problems(replace(CFG, monitor_problems=3), inputs["problems"].path)
    assert set(pools) == {"reasoning"}
    assert [problem.suite for problem in heldout] == ["reasoning"] * 3 + ["general"] * 3


def test_everything_to_watch_is_there_on_held_out_problems(inputs, tmp_path) -> None:
    run(CFG, inputs, context(tmp_path))
    first, *_ = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    behaviour = ("reward", "length", "length_wrong", "truncated", "format", "language", "reasoned", "reflection")
    of_groups = ("within_group_std", "all_right", "all_wrong", "entropy")
    for suite in ("reasoning", "general"):
        for name in (*behaviour, *of_groups, "pass@1", "pass@2", "pass@4"):
            assert f"heldout/{suite}/{name}" in first, name
        passed = [first[f"heldout/{suite}/pass@{k}"] for k in (1, 2, 4)]
        assert passed == sorted(passed)
        of_none_and_all = first[f"heldout/{suite}/all_wrong"] + first[f"heldout/{suite}/pass@4"]
        assert of_none_and_all == pytest.approx(1.0)  # four samples: a problem is all wrong or one of them is right
    # The entropy of this rollout's policy, measured on what is trained on, beside its estimate from samples.
    assert first["heldout/reasoning/entropy"] == pytest.approx(first["train/entropy"], rel=0.3)
