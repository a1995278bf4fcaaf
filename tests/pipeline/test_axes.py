"""Axes that act on no stage are refused before anything runs; identical jobs are one result."""

from __future__ import annotations

import pytest

from pipeline.axes import check_axes, sweep_axes
from pipeline.compose import compose
from pipeline.messages import Refused
from pipeline.plan import make_plan

ONE_UPDATE = "stages.reasoning_rl.updates_per_rollout=1"


def refusal(*arguments: str) -> str:
    with pytest.raises(Refused) as caught:
        check_axes(["-m", *arguments])
    return str(caught.value)


def test_axes_are_what_has_several_values() -> None:
    fixed, axes = sweep_axes(
        ["-m", "G=4,8", "beta=0.1", "seed=range(0,3)", "force=[a,b]", "epsilon=interval(0,1)", "hydra/launcher=joblib"]
    )
    assert {axis.key: axis.values for axis in axes} == {
        "G": ["4", "8"],
        "seed": ["0", "1", "2"],
        "epsilon": ["0.0", "1.0"],
    }
    assert fixed == ["beta=0.1", "force=[a,b]"]


def test_a_clip_range_without_a_ratio_is_refused() -> None:
    told = refusal(ONE_UPDATE, "stages.reasoning_rl.algorithm.epsilon=0.1,0.2")
    assert told.startswith("stages.reasoning_rl.algorithm.epsilon: ") and "acts on no stage" in told
    assert "every ratio is 1" in told and "allow_inert=true" in told and len(told.splitlines()) == 1


def test_a_root_knob_is_named_with_the_stages_on_which_it_acts() -> None:
    (note,) = check_axes(["-m", ONE_UPDATE, "epsilon=0.1,0.2"])
    assert note.startswith("epsilon acts on general_rl only (reasoning_rl: with one update")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("algorithm=dapo", "epsilon=0.1,0.2"), "dapo pins epsilon to 0.2 (arXiv:2503.14476)"),
        (
            (
                "stages.reasoning_rl.algorithm.kl_estimator=k1",
                "stages.reasoning_rl.algorithm.beta=0.01,0.1",
            ),
            "k1 in the loss has no expected gradient",
        ),
        (("stages.cold_start.save_every_steps=5,10",), "where or how fast"),
        (("tracker=none,wandb",), "no stage reads it"),
        (("stages.reasoning_rl.algorithm.max_resample_rounds=1,2",), "zero_variance=keep draws nothing again"),
    ],
)
def test_axes_that_do_nothing_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    assert reason in refusal(*arguments)


def test_an_axis_that_acts_for_some_value_of_another_is_none_of_these() -> None:
    axes = ["stages.reasoning_rl.updates_per_rollout=1,2", "stages.reasoning_rl.algorithm.epsilon=0.1,0.2"]
    assert check_axes(["-m", *axes]) == []
    assert check_axes(["-m", "algorithm@stages.reasoning_rl.algorithm=grpo,dapo,rloo", "seed=0,1"]) == []


def test_a_job_that_is_refused_says_nothing_about_its_axis() -> None:
    assert check_axes(["-m", "G=1,8"]) == []
    assert check_axes(["-m", "G=4,many"]) == []


def test_allow_inert_insists_and_is_told() -> None:
    (note,) = check_axes(["-m", ONE_UPDATE, "stages.reasoning_rl.algorithm.epsilon=0.1,0.2", "allow_inert=true"])
    assert "acts on no stage" in note


def test_recipes_that_differ_in_redundant_knobs_alone_are_one_result(tmp_path) -> None:
    def prints(*overrides: str) -> dict[str, str]:
        plan = make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *overrides]))
        return {stage.name: stage.fingerprint for stage in plan.stages}

    same, other = prints(ONE_UPDATE, "epsilon=0.1"), prints(ONE_UPDATE, "epsilon=0.2")
    assert {name for name in same if same[name] != other[name]} == {"general_rl", "general_rl.eval"}
    k1 = "stages.general_rl.algorithm.kl_estimator=k1"  # no expected gradient, but other bits
    assert prints(k1, "beta=0.1")["general_rl"] != prints(k1, "beta=0.2")["general_rl"]
