"""The update is a function of the mini-batch alone: any split, packed or padded, gives the same loss and gradient."""

from __future__ import annotations

import random

import pytest
import torch

from stages.parts.losses.algorithms import ALGORITHMS, LossInputs, policy_loss
from stages.parts.losses.counts import BatchCounts, add_counts, count_batch
from stages.parts.losses.reductions import REDUCTIONS
from stages.parts.losses.sft import sft_loss
from stages.parts.losses.statistics import merge, summarise
from tests.stages.losses import batches, naive


def random_parts(count: int, seed: int) -> list[list[int]]:
    order = list(range(count))
    draw = random.Random(seed)
    draw.shuffle(order)
    cuts = sorted(draw.sample(range(1, count), 3))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


def relative(a, b) -> float:
    return ((batches.flat(a) - batches.flat(b)).norm() / batches.flat(b).norm()).item()


FULL = {"beta": 0.1, "importance_cap": 1.5, "entropy_bonus": 0.05}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_split_gives_the_same_update(name, reduction):
    responses, cfg = naive.random_responses(7), batches.config(name, reduction=reduction, **FULL)
    whole_loss, whole = batches.loss_and_gradient(responses, cfg)
    singles = [[i] for i in range(len(responses))]
    for parts in (random_parts(len(responses), 0), random_parts(len(responses), 1), singles):
        loss, gradient = batches.loss_and_gradient(responses, cfg, parts)
        assert loss == pytest.approx(whole_loss, abs=1e-12)
        assert relative(gradient, whole) < 1e-12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_dividing_once_more_is_seen(name):
    """The planted fault: a share divided by the number of micro-batches, as if it were a mean."""
    responses, cfg = naive.random_responses(7), batches.config(name, **FULL)
    _, whole = batches.loss_and_gradient(responses, cfg)
    _, faulty = batches.loss_and_gradient(responses, cfg, random_parts(len(responses), 0), divide_again=True)
    assert relative(faulty, whole) > 0.5


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_packed_rows_are_padded_rows(name, reduction):
    responses, cfg = naive.random_responses(5), batches.config(name, reduction=reduction, **FULL)
    loss, gradient = batches.loss_and_gradient(responses, cfg)
    advantages = batches.rollout_advantages(responses, cfg)
    padded = batches.micro_batch(responses, advantages)
    rows, width = len(responses), padded.mask_BT.shape[1]

    def pack(values_BT):  # two responses a row, each with its prompt and padding
        values_BT = torch.cat([values_BT, values_BT[:1]]) if rows % 2 else values_BT
        return values_BT.detach().reshape(-1, 2 * width)

    segments = pack(torch.arange(1, width + 1).expand(rows, width) * 0 + 1)
    segments[:, width:] = 2
    mask = pack(padded.mask_BT)
    if rows % 2:
        mask[-1, width:] = 0
    segments = segments.where(mask > 0, 0)
    packed = LossInputs(
        policy_logps_BT=pack(padded.policy_logps_BT).requires_grad_(),
        old_logps_BT=pack(padded.old_logps_BT),
        advantages_BT=pack(padded.advantages_BT),
        mask_BT=mask,
        sampler_logps_BT=pack(padded.sampler_logps_BT),
        reference_logps_BT=pack(padded.reference_logps_BT),
        entropy_BT=pack(padded.entropy_BT),
        segment_ids_BT=segments,
    )
    counts = count_batch(mask, batches.LIMIT, segments)
    assert counts == batches.counts_of([padded])
    packed_loss, _ = policy_loss(cfg, packed, counts)
    packed_loss.backward()
    assert packed_loss.item() == pytest.approx(loss, abs=1e-12)
    assert (packed.policy_logps_BT.grad[mask > 0] - batches.flat(gradient)).abs().max() < 1e-12


def test_statistics_add_up_like_the_loss():
    responses, cfg = naive.random_responses(2), batches.config("grpo", dual_clip=1.2, **FULL)
    advantages = batches.rollout_advantages(responses, cfg)
    whole = batches.micro_batch(responses, advantages)
    counts = batches.counts_of([whole])
    once = summarise(policy_loss(cfg, whole, counts)[1])
    parts = [[responses[i] for i in part] for part in random_parts(len(responses), 4)]
    by_response = {id(r): a for r, a in zip(responses, advantages, strict=True)}
    merged = merge(
        [policy_loss(cfg, batches.micro_batch(part, [by_response[id(r)] for r in part]), counts)[1] for part in parts]
    )
    assert summarise(merged) == pytest.approx(once, abs=1e-12)
    assert once["loss"] == pytest.approx(once["policy_loss"] + once["kl_loss"] + once["entropy_loss"])
    assert 0 < once["clip_high"] < 1 and 0 < once["clip_low"] < 1 and 0 < once["clip_dual"] < 1
    assert once["ratio_max"] > once["ratio"] > 0 and once["importance_max"] > once["importance"] > 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_supervised_loss_splits(reduction):
    torch.manual_seed(0)
    mask = (torch.rand(6, 9) > 0.4).float()
    mask[2] = 0
    logps = (-torch.rand(6, 9, dtype=torch.float64)).requires_grad_()
    counts = count_batch(mask, 9)
    assert counts == BatchCounts(5.0, float(mask.sum()), 9)
    assert counts == add_counts(count_batch(mask[:2], 9), count_batch(mask[2:], 9))
    whole, sums = sft_loss(logps, mask, counts, reduction)
    gradient = torch.autograd.grad(whole, logps)[0]
    parts = [sft_loss(logps[rows], mask[rows], counts, reduction) for rows in ([0, 1], [2], [3, 4, 5])]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item(), abs=1e-12)
    again = torch.autograd.grad(sum(loss for loss, _ in parts), logps)[0]
    assert (again - gradient).abs().max() < 1e-12
    assert merge([s for _, s in parts])["nll"].item() == pytest.approx(sums["nll"].item())


def test_counts_of_another_limit_do_not_add():
    with pytest.raises(ValueError, match="length limit"):
        add_counts(BatchCounts(1, 1, 10), BatchCounts(1, 1, 12))
