"""Groups, constant groups and responses that cannot be judged; properties over whatever a rollout may hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.parts.losses.advantages import group_advantages, process_advantages
from stages.parts.losses.algorithms import ALGORITHMS, LossInputs, policy_loss
from stages.parts.losses.counts import count_batch
from stages.parts.losses.papers import PAPERS
from stages.parts.losses.reductions import REDUCTIONS
from tests.stages.losses import batches

NAN = float("nan")


def run(rewards, groups, name="grpo", valid=None, **knobs):
    valid = [True] * len(rewards) if valid is None else valid
    cfg = batches.config(name, **knobs)
    return group_advantages(batches.double(rewards), torch.tensor(groups), torch.tensor(valid), cfg)


def test_groups_are_ids():
    """Two groups to one and the same prompt stay apart: the second learns, the first has nothing to learn."""
    result = run([1, 1, 1, 0], [70, 70, 3, 3])
    assert result.advantages_N[:2].tolist() == [0, 0]
    assert result.advantages_N[2:].tolist() == pytest.approx([1, -1], abs=1e-5)
    assert result.constant_N.tolist() == [True, True, False, False]
    shuffled = run([1, 1, 0, 1], [3, 70, 3, 70])
    assert shuffled.advantages_N.tolist() == pytest.approx([1, 0, -1, 0], abs=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e6])
def test_a_constant_group_is_exactly_zero(name, value):
    for size in (2, 3, 7, 11):
        result = run([value] * size + [0, 1], [0] * size + [1, 1], name)
        assert result.advantages_N[:size].eq(0).all()
        assert result.constant_N.tolist() == [True] * size + [False, False]


@pytest.mark.parametrize(("zero_variance", "kept"), [("keep", True), ("drop", False), ("resample", False)])
def test_what_becomes_of_constant_groups(zero_variance, kept):
    result = run([1, 1, 1, 0], [0, 0, 1, 1], zero_variance=zero_variance)
    assert result.kept_N.tolist() == [kept, kept, True, True]
    assert result.stats["constant_groups"] == 1


def test_one_loser_is_not_float_noise():
    result = run([0.0] + [0.95] * 7, [0] * 8, zero_variance="drop")
    assert result.kept_N.all() and result.advantages_N[0] < -2


@pytest.mark.parametrize(
    "unjudgeable", [{"rewards": [1, 0, NAN]}, {"rewards": [1, 0, 5], "valid": [True, True, False]}]
)
def test_unjudgeable_responses_leave_the_statistics(unjudgeable):
    result = run(unjudgeable["rewards"], [0, 0, 0], valid=unjudgeable.get("valid"))
    assert result.advantages_N.tolist() == pytest.approx([1, -1, 0], abs=1e-5)
    assert result.kept_N.tolist() == [True, True, False]
    assert result.stats["unjudgeable"] == 1 and result.stats["reward_mean"] == 0.5


@pytest.mark.parametrize("name", ALGORITHMS)
def test_fewer_than_two_judged_learn_nothing(name):
    result = run([1, NAN, NAN, NAN, 1, 0], [0, 0, 1, 1, 2, 2], name)
    assert result.advantages_N[:4].eq(0).all() and result.advantages_N[4] > 0
    assert result.kept_N.tolist() == [True, False, False, False, True, True]
    assert result.stats["undersized_groups"] == 2 and result.stats["constant_groups"] == 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rollout_that_cannot_be_judged_at_all(name):
    result = run([NAN, NAN], [0, 0], name)
    assert result.advantages_N.eq(0).all() and not result.kept_N.any()
    assert "reward_mean" not in result.stats and result.stats["unjudgeable"] == 2


def test_dynamic_sampling_may_look_at_accuracy_alone():
    """DAPO's Eq. 11: all right, though the overlong penalty makes the rewards differ."""
    cfg = batches.config("dapo", zero_variance="resample")
    rewards, accuracy = batches.double([1, 0.5, 1, -1]), batches.double([1, 1, 1, 0])
    valid = torch.ones(4).bool()
    result = group_advantages(rewards, torch.tensor([0, 0, 1, 1]), valid, cfg, filter_N=accuracy)
    assert result.kept_N.tolist() == [False, False, True, True]


def test_groups_of_one_are_legal_for_reinforce_pp_only():
    assert run([1, 0], [0, 1], "reinforce_pp").advantages_N.tolist() == pytest.approx([1, -1], abs=1e-5)
    assert run([1, 0], [0, 1], "reinforce_pp", zero_variance="drop").kept_N.all()
    assert run([1, 0], [0, 1], "grpo").advantages_N.tolist() == [0, 0]


def test_process_rewards_of_constant_and_unjudgeable_responses():
    ends = [torch.tensor([0, 2])] * 4
    steps = [batches.double([1, 1]), batches.double([1, 1]), batches.double([1, 0]), batches.double([NAN, 1])]
    cfg = batches.config("grpo", zero_variance="drop")
    valid = torch.ones(4).bool()
    result = process_advantages(steps, ends, [3] * 4, torch.tensor([0, 0, 1, 1]), valid, cfg)
    assert all(tokens.eq(0).all() for tokens in result.token_advantages_N)  # group 1: one judged response is left
    assert result.kept_N.tolist() == [False] * 4
    one = process_advantages(steps[1:3], ends[:2], [3, 3], torch.tensor([0, 0]), valid[:2], cfg)
    assert one.kept_N.all() and one.token_advantages_N[0][0] > 0 > one.token_advantages_N[1][2]
    assert torch.stack(one.token_advantages_N)[:, 0].sum().item() == pytest.approx(0, abs=1e-9)
    empty = process_advantages(
        [batches.double([])] * 2, [torch.tensor([])] * 2, [3, 0], torch.tensor([0, 0]), valid[:2], cfg
    )
    assert all(tokens.eq(0).all() for tokens in empty.token_advantages_N)


reward = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.95, NAN, math.inf]), st.floats(-10, 10))
rollouts = st.lists(st.tuples(st.integers(0, 3), reward, st.integers(0, 6), st.booleans()), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(
    rows=rollouts,
    name=st.sampled_from(list(ALGORITHMS)),
    reduction=st.sampled_from(REDUCTIONS),
    zero_variance=st.sampled_from(["keep", "drop"]),
    std=st.sampled_from(["population", "sample", "none"]),
    all_truncated=st.booleans(),
)
def test_never_nan(rows, name, reduction, zero_variance, std, all_truncated):
    """Any group sizes, lengths (also 0), unjudgeable, truncated responses: a finite loss, no gradient outside."""
    cfg = batches.config(name, reduction=reduction, zero_variance=zero_variance, std=std, beta=0.1)
    groups = torch.tensor([group for group, *_ in rows])
    rewards = batches.double([reward for _, reward, _, _ in rows])
    result = group_advantages(rewards, groups, torch.ones(len(rows)).bool(), cfg)
    assert result.advantages_N.isfinite().all() and all(math.isfinite(value) for value in result.stats.values())
    assert result.advantages_N[~result.kept_N].eq(0).all()
    if PAPERS[name].group_baseline:
        for group in groups.unique():
            assert result.advantages_N[groups == group].mean().abs() < 1e-6  # a baseline moves no probability mass
    mask = torch.zeros(len(rows), 7)
    for i, (_, _, length, truncated) in enumerate(rows):
        if result.kept_N[i] and not (truncated or all_truncated):  # as mask_truncated does
            mask[i, 1 : 1 + length] = 1
    policy = torch.randn(len(rows), 7, requires_grad=True)
    inputs = LossInputs(
        policy,
        torch.randn(len(rows), 7),
        result.advantages_N.unsqueeze(1).expand(-1, 7),
        mask,
        reference_logps_BT=torch.randn(len(rows), 7),
    )
    loss, sums = policy_loss(cfg, inputs, count_batch(mask, 6))
    loss.backward()
    assert loss.isfinite() and policy.grad.isfinite().all() and policy.grad[mask == 0].eq(0).all()
    assert all(value.isfinite() for value in sums.values())
