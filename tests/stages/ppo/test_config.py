"""What can be refused before anything runs, and which knobs do nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.compose import compose
from pipeline.messages import Refused
from pipeline.plan import make_plan
from stages.parts.policy.config import LoRAConfig
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig, outline

ALGORITHM = PPOAlgorithmConfig(beta=0.0, epsilon=0.2)
CONFIG = PPOConfig(seed=0, G=1, algorithm=ALGORITHM)


def test_one_response_a_prompt_is_enough():
    assert CONFIG.faults() == []


@pytest.mark.parametrize(
    ("key", "changes", "knobs"),
    [
        ("algorithm.gamma", {}, {"gamma": 1.5}),
        ("algorithm.gae_lambda", {}, {"gae_lambda": -0.1}),
        ("algorithm.gae_lambda", {}, {"gae_lambda": float("nan")}),
        ("algorithm.value_clip", {}, {"value_clip": 0.0}),
        ("algorithm.epsilon_high", {}, {"epsilon_high": 0.1}),
        ("algorithm.reduction", {}, {"reduction": "mean"}),
        ("critic", {"critic": "shared"}, {}),
        ("critic", {"critic": "head", "lora": LoRAConfig(rank=8)}, {}),
        ("critic_learning_rate", {"critic_learning_rate": 0.0}, {}),
        ("G", {"G": 0}, {}),
        ("temperature", {"temperature": 0.0}, {}),
        ("top_p", {"top_p": 0.9}, {"importance_cap": 2.0}),
    ],
)
def test_faults_name_their_key(key, changes, knobs):
    faults = replace(CONFIG, algorithm=replace(ALGORITHM, **knobs), **changes).faults()
    assert [fault.key for fault in faults] == [key]
    assert all(fault.remedy for fault in faults)


def test_every_knob_of_the_policy_reaches_its_loss():
    knobs = PPOAlgorithmConfig(
        beta=0.1, epsilon=0.3, epsilon_high=0.4, reduction="constant_length", dual_clip=3.0, importance_cap=2.0,
        entropy_bonus=0.01, mask_truncated=True, truncated_reward=0.0, overlong_buffer_tokens=5,
    )  # fmt: skip
    actor, plain = vars(knobs.actor()), vars(PPOAlgorithmConfig(beta=0.0, epsilon=0.2).actor())
    shared = set(vars(knobs)) & set(actor)
    assert len(shared) == 10
    for knob in shared:
        assert actor[knob] == getattr(knobs, knob) != plain[knob], knob


def test_knobs_that_do_nothing():
    inputs = {"policy": {}, "problems": {}}
    once = outline(replace(CONFIG, updates_per_rollout=1), inputs).inert
    assert set(once) == {
        "value_weight",
        *(f"algorithm.{k}" for k in ("epsilon", "epsilon_high", "dual_clip", "value_clip")),
    }
    head = outline(replace(CONFIG, critic="head"), inputs)
    assert set(head.inert) == {"critic_learning_rate"}
    assert "critic_learning_rate" in head.redundant  # not in the fingerprint


def test_both_have_the_same_budget():
    """ppo_vs_grpo: same problems, base, steps, prompts, responses, tokens, rewards, sampling and schedule."""
    stages = compose(["pipeline=ppo_vs_grpo", "G=4", "beta=0.5", "epsilon=0.3"]).stages
    grpo, ppo = stages["reasoning_grpo"], stages["reasoning_ppo"]
    own = {"kind", "algorithm", "critic", "critic_learning_rate", "value_weight", "supervision", "step_numbers_once"}
    assert {k: v for k, v in vars(grpo).items() if k not in own} == {k: v for k, v in vars(ppo).items() if k not in own}
    assert (ppo.G, ppo.algorithm.beta, ppo.algorithm.epsilon) == (4, 0.5, 0.3)


def test_the_plan_refuses_what_cannot_be_right(tmp_path):
    cfg = compose([
        "pipeline=ppo_vs_grpo", f"output_dir={tmp_path}", "stages.reasoning_ppo.critic=shared",
        "stages.reasoning_ppo.algorithm.gamma=2",
    ])  # fmt: skip
    with pytest.raises(Refused) as refused:
        make_plan(cfg)
    assert "stages.reasoning_ppo.critic" in str(refused.value)
    assert "stages.reasoning_ppo.algorithm.gamma" in str(refused.value)
