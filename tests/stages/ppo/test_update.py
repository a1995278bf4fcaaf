"""Advantages against numbers made by hand, and updates of policy and critic that do not depend on how they are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.tracking import Metrics
from stages.parts.experience.rows import count_rows
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.invariance import Split, Task, compare
from stages.parts.policy.model import Policy
from stages.parts.policy.train_engine import TrainEngine
from stages.parts.policy.value_head import NAME, add_value_head
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig
from stages.ppo.update import Learners, assign_advantages, update, update_critic
from tests.stages.policy.tiny import tiny_policy
from tests.stages.ppo.rows import experience_of, made_up_rows, one_response

PLAIN = PPOAlgorithmConfig(beta=0.0, epsilon=0.2, whiten_advantages=False, gae_lambda=0.95)
CFG = PPOConfig(
    seed=0, G=1, steps=3, max_response_tokens=20, critic="head", optimizer=OptimizerConfig(max_grad_norm=0.5),
    algorithm=replace(PLAIN, beta=0.01),
)  # fmt: skip
SPLITS = [
    Split("one micro-batch"),
    Split("64 tokens", tokens_per_microbatch=64),
    Split("a row", tokens_per_microbatch=1),
]


def advantages_of(algorithm: PPOAlgorithmConfig, *rows) -> Metrics:
    return assign_advantages(experience_of(*rows), replace(CFG, algorithm=algorithm))


def test_golden_gae():
    """0.3; 0.1 + 0.95 * 0.3 = 0.385; 0.1 + 0.95 * 0.385 = 0.46575; returns are A + V."""
    row = one_response([0.5, 0.6, 0.7], 1.0)
    metrics = advantages_of(PLAIN, row)
    assert row.advantages == pytest.approx([0.46575, 0.385, 0.3])
    assert row.returns == pytest.approx([0.96575, 0.985, 1.0])
    assert metrics["critic/value"] == pytest.approx(0.6)
    assert metrics["critic/bias"] == pytest.approx(-(0.46575 + 0.385 + 0.3) / 3)


def test_a_perfect_critic_leaves_nothing_and_lambda_one_gives_the_return():
    row = one_response([1.0, 1.0, 1.0], 1.0)
    advantages_of(PLAIN, row)
    assert row.advantages == pytest.approx([0.0, 0.0, 0.0])
    row = one_response([0.5, 0.6, 0.7], 1.0)
    advantages_of(replace(PLAIN, gae_lambda=1.0), row)
    assert row.returns == pytest.approx([1.0, 1.0, 1.0])


def test_kl_is_paid_on_its_own_token():
    """k1 = old - reference: 0.5 on the second token costs 0.05 there and, with gamma 1, before it."""
    row = one_response([0.0, 0.0, 0.0], 1.0, old_logps=[-1.0, -1.0, -1.0], reference_logps=[-1.0, -1.5, -1.0])
    metrics = advantages_of(replace(PLAIN, beta=0.1, gae_lambda=1.0), row)
    assert row.returns == pytest.approx([0.95, 0.95, 1.0])
    assert metrics["reward/kl"] == pytest.approx(0.5 / 3)


def test_a_response_that_was_cut_off_ends_like_any_other():
    whole, cut = one_response([0.5, 0.6, 0.7], 1.0), one_response([0.5, 0.6, 0.7], 1.0)
    cut.rollout.truncated = True
    advantages_of(PLAIN, whole)
    advantages_of(PLAIN, cut)
    assert cut.advantages == whole.advantages
    assert cut.trained
    advantages_of(replace(PLAIN, mask_truncated=True), whole, cut)
    assert (whole.trained, cut.trained) == (True, False)


def test_whitening_is_over_tokens_and_leaves_out_what_cannot_be_judged():
    rows = [one_response([0.0] * 2, 1.0), one_response([0.0] * 6, 0.0), one_response([9.0] * 4, float("nan"))]
    advantages_of(replace(PLAIN, gae_lambda=1.0, whiten_advantages=True), *rows)
    # 2 tokens of 1 and 6 of 0: mean 1/4, std sqrt(3)/4
    assert rows[0].advantages == pytest.approx([3**0.5] * 2)
    assert rows[1].advantages == pytest.approx([-(3**-0.5)] * 6)
    assert not rows[2].trained
    assert rows[2].advantages == [0.0] * 4


def test_whitened_rewards_are_over_their_std_and_keep_their_mean():
    """Token rewards 0 1 and 0 0 0 0: mean 1/6, std sqrt(5)/6: 1 becomes sqrt(5) + 1/6, and 0 -1/sqrt(5) + 1/6."""
    rows = [one_response([0.0] * 2, 1.0), one_response([0.0] * 4, 0.0)]
    advantages_of(replace(PLAIN, gae_lambda=1.0, whiten_rewards=True), *rows)
    high, low = 5**0.5 + 1 / 6, -(5**-0.5) + 1 / 6
    assert rows[0].returns == pytest.approx([low + high, high])
    assert rows[1].returns == pytest.approx([4 * low, 3 * low, 2 * low, low])


def test_an_empty_or_unjudgeable_rollout_is_survived():
    assert advantages_of(PLAIN)["critic/value"] == 0.0
    row = one_response([0.5], float("nan"))
    advantages_of(PLAIN, row)
    learners = Learners(None, None)  # nothing is asked of it
    assert update([row], learners, CFG, 1e-3, 1e-3) == {"train/empty_step": 1.0}


def with_head(cfg: PPOConfig) -> Policy:
    policy = tiny_policy()
    _random_head(policy.model)
    return policy


def critic_alone(cfg: PPOConfig) -> Policy:
    policy = tiny_policy()
    body = policy.model.get_decoder()
    _random_head(body)
    return replace(policy, model=body)


def _random_head(model: torch.nn.Module) -> None:
    add_value_head(model)
    torch.manual_seed(1)
    torch.nn.init.normal_(getattr(model, NAME).weight, std=0.1)


def both(engine: TrainEngine, cfg: PPOConfig, step: int, rate: float, rank: int, ranks: int) -> Metrics:
    return update(made_up_rows(step)[rank::ranks], Learners(engine, None), cfg, rate, rate)


def critic_step(engine: TrainEngine, cfg: PPOConfig, step: int, rate: float, rank: int, ranks: int) -> Metrics:
    rows = made_up_rows(step)[rank::ranks]
    metrics = update_critic(rows, engine, cfg, count_rows(rows, cfg), rate)
    return {"train/loss": metrics["critic/loss"], "train/grad_norm": metrics["critic/grad_norm"]}


TASKS = {"head": Task(CFG, with_head, both), "separate": Task(CFG, critic_alone, critic_step)}


@pytest.mark.parametrize("critic", TASKS)
def test_micro_batches_do_not_matter(critic):
    for difference in compare(TASKS[critic], SPLITS):
        assert difference.agrees, difference


def test_values_know_only_what_came_before():
    """V_t is the value of the state in which token t is chosen: token t itself must not move it."""
    from stages.parts.policy.batch import pad_batch
    from stages.parts.policy.scoring import Scorer

    policy = critic_alone(CFG)
    ids = [[5, 6, 7, 8, 9]]
    changed = [[5, 6, 7, 20, 9]]
    mask = [[0.0, 0.0, 1.0, 1.0, 1.0]]
    with torch.no_grad():
        one, other = (
            Scorer(policy.model)(pad_batch(given, mask, policy.pad_id, policy.device), 1.0, False)[2]
            for given in (ids, changed)
        )
    assert one is not None
    assert other is not None
    assert torch.equal(one[0, :4], other[0, :4])
    assert one[0, 4] != other[0, 4]
    assert torch.equal(one[0, :2], torch.zeros(2))
