"""From samples and conversations to one optimizer step: the divergence from the teacher, and a reward beside it.

Differs from the textbook: the student's own sequences and those of the data share one batch and one denominator, taken
over all ranks before any micro-batch is cut. Gradients do not flow through the sampling (GKD, arXiv:2306.13649).
Suffixes: N responses of a rollout, B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.tracking import Metrics
from stages.on_policy_distill.config import OnPolicyDistillConfig
from stages.parts.experience.collect import Experience, Row
from stages.parts.experience.rows import aligned, score_rows
from stages.parts.losses.advantages import group_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss, read_by_loss
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.reductions import token_weights
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pack_batch
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.examples import Example
from stages.parts.policy.scoring import TokenStats
from stages.parts.policy.soft_targets import Divergence, Targets
from stages.parts.policy.train_engine import TrainEngine


@dataclass
class Reading:
    """One sequence that the teacher reads: the student's own, or a conversation."""

    ids: list[int]
    mask: list[float]  # the tokens that carry loss
    row: Row | None = None  # of a sample

    @property
    def tokens(self) -> float:
        return sum(self.mask[1:])

    @property
    def is_rewarded(self) -> bool:
        return self.row is not None and bool(self.row.advantages)


SUMS = ("own_divergence", "own_tokens", "data_divergence", "data_tokens", "entropy", "sampler_gap", "reward_loss")


def readings_of(rows: list[Row], examples: list[Example]) -> list[Reading]:
    """This rank's sequences of one step. Tokens that the policy did not produce carry no loss."""
    own = [
        Reading(
            row.rollout.prompt_ids + row.rollout.response_ids,
            [0.0] * len(row.rollout.prompt_ids) + row.rollout.mask,
            row,
        )
        for row in rows
        if row.trained
    ]
    return own + [Reading(example.ids, [float(flag) for flag in example.mask]) for example in examples]


@torch.no_grad()
def assign_rewards(experience: Experience, engine: TrainEngine, cfg: OnPolicyDistillConfig) -> None:
    """What a reward beside the divergence needs: advantages from the rewards of all ranks, and the trainer's log-probs
    at rollout time. And which rows stay out of the loss altogether."""
    for row in experience.rows:
        row.trained = not (cfg.algorithm.mask_truncated and row.rollout.truncated)
    if cfg.reward_weight == 0:
        return
    briefs = experience.briefs
    rewards_N = torch.tensor([brief.reward for brief in briefs], dtype=torch.float64)
    groups_N = torch.tensor([brief.group for brief in briefs])
    scores_N = torch.tensor([brief.score for brief in briefs], dtype=torch.float64)
    result = group_advantages(rewards_N, groups_N, ~rewards_N.isnan(), cfg.algorithm, filter_N=scores_N)
    places = {(brief.group, brief.sample_index): place for place, brief in enumerate(briefs)}
    for row in experience.rows:
        place = places[row.group, row.rollout.sample_index]
        if result.kept_N[place]:  # else it has no advantages: it learns from the teacher alone
            row.advantages = result.of_response(place, len(row.rollout.response_ids)).tolist()
    rows, policy = experience.rows, engine.policy
    for row, logps in score_rows(rows, policy, lambda b: engine.logps(b, cfg.temperature).logps_BT, cfg):
        row.old_logps = logps


def update(
    readings: list[Reading], engine: TrainEngine, targets: Targets, cfg: OnPolicyDistillConfig, learning_rate: float
) -> Metrics:
    """One optimizer step on this rank's part; metrics are of the whole step. One that trains nothing is survived."""
    counts = _count(readings, cfg)
    rewarded = _count([reading for reading in readings if reading.is_rewarded], cfg)
    if counts.sequences == 0:
        return {"train/empty_step": 1.0}
    wanted = Divergence("jsd", cfg.temperature, cfg.jsd_weight)
    reads = read_by_loss(cfg.algorithm) if cfg.reward_weight > 0 else ()
    totals = dict.fromkeys(SUMS, 0.0)
    loss_total = 0.0
    lengths, policy = [len(reading.ids) for reading in readings], engine.policy
    width = max([2, *lengths]) if cfg.packing else None  # of packed rows
    for indices in aligned_microbatches(lengths, cfg.tokens_per_microbatch, width):
        chosen = [readings[index] for index in indices]
        batch = pack_batch([r.ids for r in chosen], [r.mask for r in chosen], policy.pad_id, policy.device, width)
        compare = targets.compare(batch, wanted)
        stats = engine.logps(batch, cfg.temperature, entropy=True, compare=compare, reads=reads)
        assert stats.compared_BT is not None
        loss = (token_weights(cfg.reduction, batch.mask_BT, counts, batch.packed_segments_BT) * stats.compared_BT).sum()
        if cfg.reward_weight > 0:
            reward_loss = _reward_share(chosen, batch, stats, rewarded, cfg)
            totals["reward_loss"] += float(reward_loss.detach())
            loss = loss + cfg.reward_weight * reward_loss
        engine.backward(loss)
        loss_total += float(loss.detach())
        for name, value in _sums(chosen, batch, stats).items():
            totals[name] += value
    result = engine.step(learning_rate)
    loss_total, *numbers = all_sum([loss_total, *totals.values()])
    read = all_sum([float(sum(len(reading.ids) for reading in readings))])[0]
    metrics = _summary(dict(zip(totals, numbers, strict=True)), cfg)
    return metrics | {
        "train/loss": loss_total,
        "train/tokens": counts.tokens,
        "train/grad_norm": result.grad_norm,
        "train/skipped": float(result.skipped),
        "train/empty_step": 0.0,
        "teacher/tokens": read,
    }


def _count(readings: list[Reading], cfg: OnPolicyDistillConfig) -> BatchCounts:
    """Denominators over all ranks."""
    sequences, tokens = all_sum([float(len(readings)), float(sum(reading.tokens for reading in readings))])
    return BatchCounts(sequences, tokens, cfg.max_response_tokens)


def _reward_share(
    readings: list[Reading], batch: TokenBatch, stats: TokenStats, counts: BatchCounts, cfg: OnPolicyDistillConfig
) -> Tensor:
    """This micro-batch's share of the policy loss: of the student's own sequences that could be judged."""
    rows = [reading.row if reading.is_rewarded else None for reading in readings]
    inputs = LossInputs(
        policy_logps_BT=stats.logps_BT,
        old_logps_BT=aligned(rows, [row.old_logps if row else None for row in rows], batch),
        advantages_BT=aligned(rows, [row.advantages if row else None for row in rows], batch),
        mask_BT=batch.mask_BT * _on_sequences([row is not None for row in rows], batch),
        sampler_logps_BT=aligned(rows, [row.rollout.sampler_logps if row else None for row in rows], batch),
        entropy_BT=stats.entropy_BT,
        segment_ids_BT=batch.packed_segments_BT,
    )
    return policy_loss(cfg.algorithm, inputs, counts)[0]


def _on_sequences(flags: list[bool], batch: TokenBatch) -> Tensor:
    """1 on the columns of the sequences that are flagged."""
    on_BT = torch.zeros_like(batch.mask_BT)
    for flag, (line, start, length) in zip(flags, batch.places, strict=True):
        on_BT[line, start : start + length] = float(flag)
    return on_BT


@torch.no_grad()
def _sums(readings: list[Reading], batch: TokenBatch, stats: TokenStats) -> dict[str, float]:
    own_BT = batch.mask_BT * _on_sequences([reading.row is not None for reading in readings], batch)
    data_BT = batch.mask_BT - own_BT
    assert stats.compared_BT is not None and stats.entropy_BT is not None
    rows = [reading.row for reading in readings]
    sampler_BT = aligned(rows, [row.rollout.sampler_logps if row else None for row in rows], batch)
    values = {
        "own_divergence": own_BT * stats.compared_BT,
        "own_tokens": own_BT,
        "data_divergence": data_BT * stats.compared_BT,
        "data_tokens": data_BT,
        "entropy": own_BT * stats.entropy_BT,
        "sampler_gap": own_BT * (stats.logps_BT - sampler_BT).abs(),
    }
    return {name: float(value_BT.sum()) for name, value_BT in values.items()}


def _summary(sums: dict[str, float], cfg: OnPolicyDistillConfig) -> Metrics:
    """Nats a token, of the student's own sequences and of the data's: their gap is the exposure bias in training."""
    metrics: Metrics = {"train/own_tokens": sums["own_tokens"]}
    if sums["own_tokens"]:
        for name in ("own_divergence", "entropy", "sampler_gap"):
            metrics[f"train/{name}"] = sums[name] / sums["own_tokens"]
    if sums["data_tokens"]:
        metrics["train/data_divergence"] = sums["data_divergence"] / sums["data_tokens"]
    if cfg.reward_weight > 0:
        metrics["train/reward_loss"] = sums["reward_loss"]
    return metrics
