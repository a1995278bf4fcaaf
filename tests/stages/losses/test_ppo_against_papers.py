"""GAE, PPO's policy loss and its clipped value loss against naive loops (naive_ppo.py): to 1e-8, gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stages.parts.losses.algorithms import LossInputs, policy_loss
from stages.parts.losses.counts import count_batch
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.reductions import REDUCTIONS, token_weights
from stages.parts.losses.value import generalised_advantages, moments, token_rewards, value_loss, whiten_by
from stages.ppo.config import PPOAlgorithmConfig
from tests.stages.losses import naive_ppo
from tests.stages.losses.batches import LIMIT, PROMPT, double, flat

SEEDS = range(5)


def padded(rows: list[list[float]], outside: float) -> Tensor:
    """A prompt in front and padding behind, which hold `outside`."""
    values_BT = torch.full((len(rows), PROMPT + max(map(len, rows)) + 1), outside, dtype=torch.float64)
    for place, row in enumerate(rows):
        values_BT[place, PROMPT : PROMPT + len(row)] = double(row)
    return values_BT


def mask_of(episodes) -> Tensor:
    return padded([[1.0] * len(e.policy) for e in episodes], 0.0)


def inside(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return values_BT[mask_BT > 0]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0)])
@pytest.mark.parametrize("whiten_rewards", [False, True])
def test_advantages_and_returns(gamma, gae_lambda, whiten_rewards):
    nan = float("nan")
    for seed in SEEDS:
        episodes, beta = naive_ppo.random_episodes(seed), 0.3
        mask_BT = mask_of(episodes)
        kl_BT = kl_estimate("k1", padded([e.old for e in episodes], nan), padded([e.reference for e in episodes], nan))
        rewards_BT = token_rewards(double([e.reward for e in episodes]), mask_BT, kl_BT, beta)
        expected = [naive_ppo.token_rewards(e, beta) for e in episodes]
        if whiten_rewards:
            rewards_BT = whiten_by(rewards_BT, mask_BT, moments(rewards_BT, mask_BT), centre=False)
            expected = naive_ppo.over_their_std(expected)
        values_BT = padded([e.old_values for e in episodes], nan)
        got_BT, returns_BT = generalised_advantages(rewards_BT, values_BT, mask_BT, gamma, gae_lambda)
        pairs = list(zip(expected, episodes, strict=True))
        raw = [naive_ppo.advantages(rewards, e.old_values, gamma, gae_lambda) for rewards, e in pairs]
        assert (inside(got_BT, mask_BT) - flat(raw)).abs().max() < 1e-8
        returns = [naive_ppo.plus(row, e.old_values) for row, e in zip(raw, episodes, strict=True)]
        assert (inside(returns_BT, mask_BT) - flat(returns)).abs().max() < 1e-8
        white_BT = whiten_by(got_BT, mask_BT, moments(got_BT, mask_BT))
        assert (inside(white_BT, mask_BT) - flat(naive_ppo.whitened(raw))).abs().max() < 1e-8
        assert got_BT[mask_BT == 0].eq(0).all() and white_BT[mask_BT == 0].eq(0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_policy_loss(reduction):
    nan = float("nan")
    cfg = PPOAlgorithmConfig(beta=0.0, epsilon=0.2, epsilon_high=0.28, reduction=reduction).actor()
    for seed in SEEDS:
        episodes = naive_ppo.random_episodes(seed)
        rewards = [naive_ppo.token_rewards(e, 0.1) for e in episodes]
        pairs = zip(rewards, episodes, strict=True)
        pushed = naive_ppo.whitened([naive_ppo.advantages(r, e.old_values, 1.0, 0.95) for r, e in pairs])
        policy_BT, mask_BT = padded([e.policy for e in episodes], nan).requires_grad_(), mask_of(episodes)
        old_BT, advantages_BT = padded([e.old for e in episodes], nan), padded(pushed, nan)
        loss, _ = policy_loss(cfg, LossInputs(policy_BT, old_BT, advantages_BT, mask_BT), count_batch(mask_BT, LIMIT))
        loss.backward()
        expected, gradients = naive_ppo.policy_loss(episodes, pushed, reduction, 0.2, 0.28, LIMIT)
        assert loss.item() == pytest.approx(expected, abs=1e-8)
        assert (inside(policy_BT.grad, mask_BT) - flat(gradients)).abs().max() < 1e-8
        assert policy_BT.grad[mask_BT == 0].eq(0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_loss(reduction, clip):
    nan = float("nan")
    for seed in SEEDS:
        episodes = naive_ppo.random_episodes(seed)
        raw = [naive_ppo.advantages(naive_ppo.token_rewards(e, 0.1), e.old_values, 1.0, 0.95) for e in episodes]
        returns = [naive_ppo.plus(row, e.old_values) for row, e in zip(raw, episodes, strict=True)]
        values_BT, mask_BT = padded([e.values for e in episodes], nan).requires_grad_(), mask_of(episodes)
        old_BT, returns_BT = padded([e.old_values for e in episodes], nan), padded(returns, nan)
        weights_BT = token_weights(reduction, mask_BT, count_batch(mask_BT, LIMIT))
        loss, held_BT = value_loss(values_BT, old_BT, returns_BT, weights_BT, clip)
        loss.backward()
        expected, gradients = naive_ppo.value_loss(episodes, returns, reduction, clip, LIMIT)
        assert loss.item() == pytest.approx(expected, abs=1e-8)
        assert (inside(values_BT.grad, mask_BT) - flat(gradients)).abs().max() < 1e-8
        assert values_BT.grad[mask_BT == 0].eq(0).all()
        assert bool(held_BT.any()) == (clip is not None)  # every branch was taken


def test_the_reference_itself_agrees_with_finite_differences():
    episodes = naive_ppo.random_episodes(1)
    pushed = naive_ppo.whitened([naive_ppo.advantages(e.old_values, e.old_values, 1.0, 0.9) for e in episodes])
    returns = [[1.0] * len(e.values) for e in episodes]

    def of_policy() -> float:
        return naive_ppo.policy_loss(episodes, pushed, "token_mean", 0.2, 0.28, LIMIT)[0]

    def of_values() -> float:
        return naive_ppo.value_loss(episodes, returns, "sequence_mean", 0.2, LIMIT)[0]

    slopes = naive_ppo.policy_loss(episodes, pushed, "token_mean", 0.2, 0.28, LIMIT)[1]
    value_slopes = naive_ppo.value_loss(episodes, returns, "sequence_mean", 0.2, LIMIT)[1]
    for i, episode in enumerate(episodes):
        for t in range(len(episode.policy)):
            assert naive_ppo.finite_difference(of_policy, episode.policy, t) == pytest.approx(slopes[i][t], abs=1e-7)
            assert naive_ppo.finite_difference(of_values, episode.values, t) == pytest.approx(
                value_slopes[i][t], abs=1e-7
            )


def test_limits():
    """lambda 1 gives the return minus the value, lambda 0 one step's error; a perfect critic leaves nothing."""
    (episode,) = naive_ppo.random_episodes(3, count=1)
    rewards_BT, mask_BT = padded([naive_ppo.token_rewards(episode, 0.2)], 0.0), mask_of([episode])
    values_BT = padded([episode.old_values], 0.0)
    to_go_BT = rewards_BT.flip(1).cumsum(1).flip(1)
    far, _ = generalised_advantages(rewards_BT, values_BT, mask_BT, 1.0, 1.0)
    assert (inside(far, mask_BT) - inside(to_go_BT - values_BT, mask_BT)).abs().max() < 1e-12
    near, _ = generalised_advantages(rewards_BT, values_BT, mask_BT, 1.0, 0.0)
    after_BT = torch.cat([values_BT[:, 1:], torch.zeros(1, 1)], dim=1)
    assert (inside(near, mask_BT) - inside(rewards_BT + after_BT - values_BT, mask_BT)).abs().max() < 1e-12
    nothing, _ = generalised_advantages(rewards_BT, to_go_BT, mask_BT, 1.0, 0.7)
    assert nothing.abs().max() < 1e-12
