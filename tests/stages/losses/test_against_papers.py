"""Every row against its paper, written a second time as plain loops with gradients by hand (naive.py), to 1e-8."""

from __future__ import annotations

import random

import pytest
import torch

from stages.parts.losses.advantages import process_advantages
from stages.parts.losses.algorithms import ALGORITHMS
from stages.parts.losses.reductions import REDUCTIONS
from tests.stages.losses import batches, naive

SEEDS = range(5)


def compare(responses, cfg):
    loss, gradient = batches.loss_and_gradient(responses, cfg)
    expected_loss, expected_gradient = naive.loss_and_gradient(
        cfg.name,
        cfg.reduction,
        responses,
        epsilon=cfg.epsilon,
        epsilon_high=cfg.epsilon if cfg.epsilon_high is None else cfg.epsilon_high,
        length_limit=batches.LIMIT,
        std_epsilon=cfg.std_epsilon,
        beta=cfg.beta,
        estimator=cfg.kl_estimator,
        place=cfg.kl_place,
        dual=cfg.dual_clip,
        ratio_max=cfg.ratio_max,
        cap=cfg.importance_cap,
        entropy_bonus=cfg.entropy_bonus,
    )
    assert loss == pytest.approx(expected_loss, abs=1e-8)
    assert (batches.flat(gradient) - batches.flat(expected_gradient)).abs().max() < 1e-8


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradient(name, reduction):
    for seed in SEEDS:
        compare(naive.random_responses(seed), batches.config(name, reduction=reduction, epsilon_high=0.28))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_loss(name, estimator):
    for seed in SEEDS:
        compare(naive.random_responses(seed), batches.config(name, beta=0.3, kl_estimator=estimator))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_in_the_reward(name, estimator):
    for seed in SEEDS:
        cfg = batches.config(name, beta=0.3, kl_estimator=estimator, kl_place="reward")
        compare(naive.random_responses(seed), cfg)


def test_kl_in_the_reward_of_single_responses():
    """REINFORCE++ as first written: one response a prompt, no group mean."""
    for seed in SEEDS:
        responses = naive.random_responses(seed, groups=9, smallest=1, largest=1)
        compare(responses, batches.config("reinforce_pp", beta=0.3, kl_estimator="k1", kl_place="reward"))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
def test_process_supervision(name):
    cfg = batches.config(name)
    for seed in SEEDS:
        draw = random.Random(seed)
        groups = [group for group in range(3) for _ in range(draw.randint(2, 5))]
        lengths = [draw.randint(1, 9) for _ in groups]
        ends = [sorted(draw.sample(range(length), draw.randint(1, length))) for length in lengths]
        steps = [[draw.choice([0.0, 1.0, draw.random()]) for _ in row] for row in ends]
        result = process_advantages(
            [batches.double(row) for row in steps],
            [torch.tensor(row) for row in ends],
            lengths,
            torch.tensor(groups),
            torch.ones(len(groups)).bool(),
            cfg,
        )
        expected = naive.process_advantages(groups, steps, ends, lengths, cfg.std_epsilon, divide=name == "grpo")
        assert (torch.cat(result.token_advantages_N) - batches.flat(expected)).abs().max() < 1e-8


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_cuts_across(name):
    for seed in SEEDS:
        cfg = batches.config(name, dual_clip=1.3, importance_cap=1.4, entropy_bonus=0.1, beta=0.05)
        compare(naive.random_responses(seed), cfg)


def test_gspo_at_its_published_bounds():
    for seed in SEEDS:
        compare(naive.random_responses(seed), batches.config("gspo", epsilon=3e-4, epsilon_high=4e-4))


def test_the_reference_itself_agrees_with_finite_differences():
    """The hand-written gradients are derivatives of the hand-written losses (cispo's weight is a constant there)."""
    step = 1e-6
    knobs = {"epsilon": 0.2, "epsilon_high": 0.28, "length_limit": 11, "beta": 0.1, "cap": 1.4, "dual": 1.5}
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp"):
        responses = naive.random_responses(0, groups=2)
        _, gradients = naive.loss_and_gradient(name, "sequence_mean", responses, **knobs)
        for i, response in enumerate(responses):
            for t in range(len(response.policy)):
                sides = []
                for sign in (1, -1):
                    response.policy[t] += sign * step
                    sides.append(naive.loss_and_gradient(name, "sequence_mean", responses, **knobs)[0])
                    response.policy[t] -= sign * step
                assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(gradients[i][t], abs=1e-7)


def test_gspo_gradient_is_that_of_the_whole_response():
    """GSPO's objective differentiated as printed (section 4.1), by finite differences of one token at a time."""
    step, responses = 1e-6, naive.random_responses(3, groups=2)
    knobs = {"epsilon": 0.2, "epsilon_high": 0.28, "length_limit": 11}
    _, gradients = batches.loss_and_gradient(responses, batches.config("gspo", epsilon_high=0.28))
    for i, response in enumerate(responses):
        for t in range(len(response.policy)):
            sides = []
            for sign in (1, -1):
                response.policy[t] += sign * step
                sides.append(naive.loss_and_gradient("gspo", "sequence_mean", responses, **knobs)[0])
                response.policy[t] -= sign * step
            assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(gradients[i][t], abs=1e-7)
