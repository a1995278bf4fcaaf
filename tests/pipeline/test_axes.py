"""Axes that act on no stage are refused before anything runs; identical jobs are one result."""

from __future__ import annotations

import pytest

from pipeline import axes
from pipeline.compose import compose
from pipeline.jobs import plan_jobs, sweep_axes
from pipeline.messages import Refused
from pipeline.plan import make_plan

ONE_UPDATE = "stages.reasoning_rl.updates_per_rollout=1"


def check_axes(arguments: list[str]) -> list[str]:
    fixed, found = sweep_axes(arguments)
    return axes.check_axes(found, list(plan_jobs(fixed, found)), insist="allow_inert=true" in fixed)


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


def test_what_until_leaves_out_is_told_only_where_an_axis_would_have_acted() -> None:
    assert check_axes(["stages.cold_start.learning_rate=1e-4,2e-4", "until=cold_start"]) == []


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
        (("G=4,8", "until=base"), "until leaves it out"),
        (("tracker=none,wandb", "until=base"), "no stage reads it"),
        (("stages.reasoning_rl.algorithm.max_resample_rounds=1,2",), "zero_variance=keep draws nothing again"),
        (
            ("stages.reasoning_rl.algorithm.beta=0", "stages.reasoning_rl.algorithm.kl_estimator=k2,k3"),
            "beta is 0, so no reference is loaded",
        ),
        (("algorithm=cispo", "epsilon=0.1,0.2"), "cispo bounds the ratio by ratio_max alone"),
        (("algorithm=rloo", "epsilon=0.1,0.2"), "rloo clips no surrogate"),
        (("algorithm=gspo", "beta=0,0.01"), "gspo pins beta to 0"),
        (
            ("stages.reasoning_rl.algorithm.epsilon_high=10", "stages.reasoning_rl.algorithm.epsilon=2,10"),
            "the lower bound 1 - 2 is never reached",
        ),
        (("stages.reasoning_rl.algorithm.epsilon_high=null,0.2",), "1 + epsilon with it and without"),
        (
            (
                "algorithm@stages.reasoning_rl.algorithm=reinforce_pp",
                "stages.reasoning_rl.algorithm.kl_place=reward",
                "stages.reasoning_rl.algorithm.kl_estimator=k1",
                "stages.reasoning_rl.G=1",
                "stages.reasoning_rl.algorithm.zero_variance=keep,drop",
            ),
            "with G=1 there are no groups",
        ),
        (
            (
                "pipeline=ppo_vs_grpo",
                "stages.reasoning_ppo.updates_per_rollout=1",
                "stages.reasoning_ppo.algorithm.value_clip=0.1,0.2",
            ),
            "policy and critic are those that sampled",
        ),
        (("pipeline=ppo_vs_grpo", "stages.reasoning_ppo.value_weight=0.1,0.5"), "an optimizer of its own"),
    ],
)
def test_axes_that_do_nothing_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    assert reason in refusal(*arguments)


@pytest.mark.parametrize(
    ("axis", "told"),
    [
        ("stages.reasoning_rl.G=1", "every advantage would be 0"),
        ("stages.reasoning_rl.algorithm.epsilon_high=0.1", "below epsilon=0.2"),
        ("stages.reasoning_rl.algorithm.overlong_buffer_tokens=100", "beyond max_response_tokens=48"),
    ],
)
def test_values_that_no_stage_can_take_are_refused_one_by_one(axis: str, told: str, tmp_path) -> None:
    """A job is refused, a sweep goes on with the others."""
    assert check_axes(["-m", "experiment=smoke", f"{axis},{axis.partition('=')[2]}0"]) == []
    with pytest.raises(Refused) as caught:
        make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", axis]))
    assert told in str(caught.value)


def test_a_cut_distribution_with_a_correction_is_refused(tmp_path) -> None:
    both = ["stages.reasoning_rl.top_p=0.9", "stages.reasoning_rl.algorithm.importance_cap=2.0"]
    with pytest.raises(Refused, match="biased"):
        make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *both]))


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


@pytest.mark.parametrize("arguments", [["G=4,8", "G=4,16"], ["G=4", "G=4,16"]])
def test_an_axis_is_written_once(arguments: list[str]) -> None:
    with pytest.raises(Refused, match=r"^G: is written more than once -> write it once"):
        sweep_axes(arguments)
