"""Golden numbers, each worked out by hand or in independent float64; 1e-6, with eps = 0 where a std is divided by."""

from __future__ import annotations

import math

import pytest
import torch

from stages.parts.losses.advantages import group_advantages, process_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.counts import count_batch
from stages.parts.losses.distillation import hard_and_soft, token_divergence
from stages.parts.losses.importance import importance_weights
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.overlong import shape_rewards, soft_overlong_penalty
from stages.parts.losses.ratios import sequence_ratio
from stages.parts.losses.reductions import token_weights
from stages.parts.losses.value import generalised_advantages, moments, token_rewards, value_loss, whiten_by

TOLERANCE = 1e-6


def double(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def config(name="grpo", **knobs) -> AlgorithmConfig:
    return AlgorithmConfig(**{"name": name, "beta": 0.0, "epsilon": 0.2, "std_epsilon": 0.0, **knobs})


def advantages_of(rewards, cfg, groups=None) -> list[float]:
    groups = groups or [0] * len(rewards)
    valid = torch.ones(len(rewards), dtype=torch.bool)
    return group_advantages(double(*rewards), torch.tensor(groups), valid, cfg).advantages_N.tolist()


@pytest.mark.parametrize(
    ("cfg", "rewards", "expected"),
    [
        # mean 1/2, population std 1/2
        (config(), [1, 0, 1, 0], [1, -1, 1, -1]),
        # mean 1/8, population std sqrt(7)/8: (7/8)/(sqrt(7)/8) = sqrt(7); -(1/8)/(sqrt(7)/8) = -1/sqrt(7)
        (config(), [1] + [0] * 7, [2.64575131] + [-0.37796447] * 7),
        # sample std: times sqrt(7/8)
        (config(std="sample"), [1] + [0] * 7, [2.47487373] + [-0.35355339] * 7),
        (config(std="none"), [1] + [0] * 7, [0.875] + [-0.125] * 7),
        (config("dr_grpo"), [1, 0, 1, 0], [0.5, -0.5, 0.5, -0.5]),
        # 1 - (0 + 1 + 0)/3 = 2/3; 0 - (1 + 1 + 0)/3 = -2/3
        (config("rloo"), [1, 0, 1, 0], [0.66666667, -0.66666667, 0.66666667, -0.66666667]),
        # one group: r - mean = +-1/2, batch std 1/2
        (config("reinforce_pp"), [1, 0, 1, 0], [1, -1, 1, -1]),
        # the loser of [0] + [0.95]*7 is not float noise: mean 0.83125, std 0.95*sqrt(7)/8
        (config(), [0] + [0.95] * 7, [-2.64575131] + [0.37796447] * 7),
    ],
)
def test_advantages(cfg, rewards, expected):
    assert advantages_of(rewards, cfg) == pytest.approx(expected, abs=TOLERANCE)


def test_whitening_over_two_groups():
    # [2,0] and [1,0,0,0]... centred 1,-1 and 3/4,-1/4 x3; mean 0; std sqrt((2 + 9/16 + 3/16)/6) = sqrt(2.75/6)
    std = math.sqrt(2.75 / 6)
    got = advantages_of([2, 0, 1, 0, 0, 0], config("reinforce_pp"), [4, 4, 9, 9, 9, 9])
    assert got == pytest.approx([x / std for x in (1, -1, 0.75, -0.25, -0.25, -0.25)], abs=TOLERANCE)
    # groups of one: no group mean; [1,0,0,0]: mean 1/4, std sqrt(3)/4 -> sqrt(3), -1/sqrt(3)
    got = advantages_of([1, 0, 0, 0], config("reinforce_pp"), [0, 1, 2, 3])
    assert got == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, abs=TOLERANCE)


def test_reinforce_pp_pays_its_kl_token_by_token():
    # r = 1 and 0, beta 1/2, KL [1,0] and [0,1]: to go [1,0] and [1,1] -> A = [.5,1], [-.5,-.5]
    # over the 4 tokens: mean 1/8, std sqrt((9/64 + 49/64 + 25/64*2)/4) = sqrt(108/256)
    cfg = config("reinforce_pp", beta=0.5, kl_place="reward", kl_estimator="k1")
    result = group_advantages(
        double(1, 0), torch.tensor([0, 1]), torch.ones(2).bool(), cfg, kl_N=[double(1, 0), double(0, 1)]
    )
    expected = [(x - 0.125) / math.sqrt(108 / 256) for x in (0.5, 1, -0.5, -0.5)]
    assert torch.cat(result.token_advantages_N).tolist() == pytest.approx(expected, abs=TOLERANCE)
    assert result.of_response(1, 2).tolist() == result.token_advantages_N[1].tolist()


def test_kl_in_the_reward_is_paid_once_a_response():
    # beta 0.1: rewards 1 - 0.1*(1+2) = 0.7 and 0 - 0.1*(-1) = 0.1; the mean of the others is the other one
    cfg = config("rloo", beta=0.1, kl_place="reward", kl_estimator="k1")
    result = group_advantages(
        double(1, 0), torch.tensor([0, 0]), torch.ones(2).bool(), cfg, kl_N=[double(1, 2), double(-1)]
    )
    assert result.advantages_N.tolist() == pytest.approx([0.6, -0.6], abs=TOLERANCE)


def test_process_supervision():
    # steps [1,0] (ends at tokens 1 and 3 of 5) and [1,1] (ends 0 and 2 of 3): mean 3/4, std sqrt(3)/4
    # normalised: 1 -> 1/sqrt(3), 0 -> -sqrt(3). Tokens 0,1 see both steps, 2,3 the second, 4 none.
    up, down = 1 / math.sqrt(3), -math.sqrt(3)
    result = process_advantages(
        [double(1, 0), double(1, 1)],
        [torch.tensor([1, 3]), torch.tensor([0, 2])],
        [5, 3],
        torch.tensor([0, 0]),
        torch.ones(2).bool(),
        config(),
    )
    first, second = result.token_advantages_N
    assert first.tolist() == pytest.approx([up + down, up + down, down, down, 0], abs=TOLERANCE)
    assert second.tolist() == pytest.approx([2 * up, up, up], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("ratio", "advantage", "knobs", "expected"),
    [
        (1.5, 1, {}, -1.2),  # -(1 + 0.2) * 1
        (1.5, -1, {}, 1.5),  # unclipped: lowering a token that rose is always allowed
        (0.5, 1, {}, -0.5),
        (0.5, -1, {}, 0.8),  # -(1 - 0.2) * -1
        (1.5, 1, {"epsilon_high": 0.28}, -1.28),
        (5.0, -1, {"dual_clip": 3.0}, 3.0),
        (2.0, -1, {"dual_clip": 3.0}, 2.0),
        (12.0, 1, {"epsilon": 10.0}, -11.0),  # DeepSeek-R1's epsilon: the range is [-9, 11]
        (0.01, -1, {"epsilon": 10.0}, 0.01),
    ],
)
def test_clipped_token_loss(ratio, advantage, knobs, expected):
    inputs = LossInputs(double([math.log(ratio)]), double([0.0]), double([advantage]), double([1.0]))
    loss, _ = policy_loss(config(**knobs), inputs, count_batch(inputs.mask_BT, 1))
    assert loss.item() == pytest.approx(expected, abs=TOLERANCE)


def test_cispo_bounds_the_ratio_absolutely():
    # ratio 3 held at 2: loss -2 * A * log pi = -2 * 0.5 * log(0.3), slope -2 * 0.5
    policy = double([math.log(0.3)]).requires_grad_()
    inputs = LossInputs(policy, double([math.log(0.1)]), double([0.5]), double([1.0]))
    loss, _ = policy_loss(config("cispo", ratio_max=2.0), inputs, count_batch(inputs.mask_BT, 1))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(0.3), abs=TOLERANCE)
    assert policy.grad.item() == pytest.approx(-1.0, abs=TOLERANCE)


def test_sequence_ratio():
    # exp((0.2 - 0.1 + 0.3 + 0) / 4) = exp(0.1)
    ratio = sequence_ratio(double([0.2, -0.1, 0.3, 0.0]), torch.zeros(1, 4), torch.ones(1, 4).double(), None)
    assert ratio.tolist() == [pytest.approx([1.105170918] * 4, abs=TOLERANCE)]


@pytest.mark.parametrize(
    ("estimator", "d", "expected"),
    [
        ("k3", 0.5, 0.1487212707),  # e^0.5 - 0.5 - 1
        ("k3", -0.5, 0.1065306597),
        ("k1", 0.5, -0.5),
        ("k2", -0.5, 0.125),
        ("k1", 50.0, -20.0),  # the log-ratio is held within +-20
        ("k3", 50.0, math.exp(20) - 21),
        ("k3", 0.0, 0.0),
    ],
)
def test_kl_estimates(estimator, d, expected):
    assert kl_estimate(estimator, double(-2.0), double(-2.0 + d)).item() == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sequence_mean", 0.5),  # (2/2 + 0/8) / 2
        ("token_mean", 0.2),  # 2 / 10
        ("constant_length", 0.1),  # (2 + 0) / (2 * 10)
        ("sequence_sum_mean", 1.0),  # (2 + 0) / 2
    ],
)
@pytest.mark.parametrize("padded_to", [8, 64])
def test_reductions(reduction, expected, padded_to):
    """Two responses: 2 tokens of loss 1 and 8 tokens of loss 0. The padded length never enters."""
    mask, losses = torch.zeros(2, padded_to), torch.zeros(2, padded_to)
    mask[0, :2] = mask[1, :8] = losses[0, :2] = 1.0
    weights = token_weights(reduction, mask, count_batch(mask, 10))
    assert (weights * losses).sum().item() == pytest.approx(expected, abs=TOLERANCE)


def test_soft_overlong():
    penalties = soft_overlong_penalty(torch.tensor([1, 80, 90, 100, 130]), 100, 20)
    assert penalties.tolist() == pytest.approx([0, 0, -0.5, -1, -1], abs=TOLERANCE)
    assert soft_overlong_penalty(torch.tensor([130]), 100, 0).tolist() == [0.0]


def test_rewards_after_the_length_rules():
    # right and short; right but cut off: 0 - 1; cannot be judged, cut off or not
    rewards, lengths = double(1, 1, math.nan, math.nan), torch.tensor([10, 100, 10, 100])
    cfg = config(truncated_reward=0.0, overlong_buffer_tokens=20)
    shaped = shape_rewards(rewards, lengths, torch.tensor([False, True, False, True]), cfg, 100)
    assert shaped[:2].tolist() == [1.0, -1.0] and shaped[2:].isnan().all()
    assert shape_rewards(rewards, lengths, torch.tensor([True] * 4), config(), 100)[:2].tolist() == [1.0, 1.0]


def test_importance_weights():
    capped, raw = importance_weights(double(-1.0, -1.0), double(-2.0, -0.5), 2.0)
    assert raw.tolist() == pytest.approx([math.e, math.exp(-0.5)], abs=TOLERANCE)
    assert capped.tolist() == pytest.approx([2.0, math.exp(-0.5)], abs=TOLERANCE)


def test_generalised_advantages():
    # deltas 0.1, 0.1, 0.3; A2 = 0.3, A1 = 0.1 + 0.95*0.3 = 0.385, A0 = 0.1 + 0.95*0.385
    rewards, values = double([0, 0, 0, 1, 0]), double([9.0, 0.5, 0.6, 0.7, 9.0])
    mask = double([0, 1, 1, 1, 0])
    advantages, returns = generalised_advantages(rewards, values, mask, 1.0, 0.95)
    assert advantages[0].tolist() == pytest.approx([0, 0.46575, 0.385, 0.3, 0], abs=TOLERANCE)
    assert returns[0].tolist() == pytest.approx([0, 0.96575, 0.985, 1.0, 0], abs=TOLERANCE)
    # a tool's tokens in between are no step in time
    gap = generalised_advantages(double([0, 0, 9, 1]), double([0.5, 0.6, 9.0, 0.7]), double([1, 1, 0, 1]), 1.0, 0.95)[0]
    assert gap[0].tolist() == pytest.approx([0.46575, 0.385, 0, 0.3], abs=TOLERANCE)


def test_token_rewards():
    got = token_rewards(double(1.0, 2.0), double([1, 1, 0], [1, 1, 1]), double([1, 2, 5], [0, 1, -1]), 0.1)
    assert got.tolist() == [pytest.approx([-0.1, 0.8, 0.0]), pytest.approx([0.0, -0.1, 2.1])]


def test_value_loss():
    # V 1.0, old 0.2, R 0: clipped V = 0.2 + 0.5 -> max(1, 0.49) = 1; V 0.3, old 1, R 0: clip 0.5 -> max(.09, .25)
    values = double([1.0, 0.3]).requires_grad_()
    weights = double([0.5, 0.5])
    loss, held = value_loss(values, double([0.2, 1.0]), double([0.0, 0.0]), weights, 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 0.5 * (1.0 + 0.25), abs=TOLERANCE)
    assert held.tolist() == [[False, True]] and values.grad[0].tolist() == pytest.approx([0.5, 0.0])
    assert value_loss(double([0.3]), double([1.0]), double([0.0]), double([1.0]), None)[0].item() == pytest.approx(
        0.045
    )


def test_whitening_from_added_moments():
    values, mask = double([1, 2, 3, 9], [4, 9, 9, 9]), double([1, 1, 1, 0], [1, 0, 0, 0])
    both = moments(values[:1], mask[:1]) + moments(values[1:], mask[1:])  # as two ranks would
    got = whiten_by(values, mask, both, epsilon=0.0)[mask > 0]
    assert got.tolist() == pytest.approx([(x - 2.5) / math.sqrt(1.25) for x in (1, 2, 3, 4)], abs=TOLERANCE)
    kept = whiten_by(values, mask, both, centre=False, epsilon=0.0)[mask > 0]
    assert kept.mean().item() == pytest.approx(2.5)


def test_hard_and_soft_distillation():
    # teacher [2,1,0]/2, student uniform: KL 0.0784209520; NLL log 3; 0.5 * 1.0986122887 + 0.5 * 4 * 0.0784209520
    teacher, student, label = double([2.0, 1.0, 0.0]), double([1.0, 1.0, 1.0]), torch.tensor([0])
    kl = token_divergence("forward_kl", teacher, student, temperature=2.0)
    assert kl.item() == pytest.approx(0.0784209520, abs=TOLERANCE)
    nll = -student.log_softmax(-1)[..., label].squeeze(-1)
    assert nll.item() == pytest.approx(1.0986122887, abs=TOLERANCE)
    loss = hard_and_soft(nll, kl, temperature=2.0, hard_weight=0.5)
    assert loss.item() == pytest.approx(0.7061480482, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "weight", "expected"),
    [
        ("forward_kl", 0.5, 0.2662167068),
        ("reverse_kl", 0.5, 0.3089936758),
        ("jsd", 0.5, 0.0687115998),
        ("jsd", 0.1, 0.0239923068),
        ("jsd", 0.9, 0.0268728322),
        ("jsd", 0.0, 0.2662167068),  # the limits: forward KL
        ("jsd", 1.0, 0.3089936758),  # and reverse KL
    ],
)
def test_divergences(kind, weight, expected):
    # a fourth, padded embedding row of the teacher is no token and must not count
    teacher, student = double([2.0, 1.0, 0.0, 50.0]), double([1.0, 1.0, 1.0])
    got = token_divergence(kind, teacher, student, jsd_weight=weight, real_vocab=3)
    assert got.item() == pytest.approx(expected, abs=TOLERANCE)
