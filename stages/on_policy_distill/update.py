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
from stages.parts.experience.rows import score_rows
from stages.parts.losses.advantages import group_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.reductions import token_weights
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pad_batch
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
    result = group_advantages(rewards_N, groups_N, ~rewards_N.isnan(), cfg.algorithm)
    places = {(brief.group, brief.sample_index): place for place, brief in enumerate(briefs)}
    for row in experience.rows:
        place = places[row.group, row.rollout.sample_index]
        if result.kept_N[place]:  # else it has no advantages: it learns from the teacher alone
            row.advantages = result.of_response(place, len(row.rollout.response_ids)).tolist()
    scored = score_rows(
        experience.rows, engine.policy, lambda b: engine.logps(b, cfg.temperature).logps_BT, cfg.tokens_per_microbatch
    )
    for row, logps in scored:
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
    totals = dict.fromkeys(SUMS, 0.0)
    loss_total = 0.0
    for indices in aligned_microbatches([len(reading.ids) for reading in readings], cfg.tokens_per_microbatch):
        chosen = [readings[index] for index in indices]
        policy = engine.policy
        batch = pad_batch([r.ids for r in chosen], [r.mask for r in chosen], policy.pad_id, policy.device)
        stats = engine.logps(batch, cfg.temperature, entropy=True, compare=targets.compare(batch, wanted))
        assert stats.compared_BT is not None
        loss = (token_weights(cfg.reduction, batch.mask_BT, counts) * stats.compared_BT).sum()
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
    policy_BT = stats.logps_BT
    inputs = LossInputs(
        policy_logps_BT=policy_BT,
        old_logps_BT=_on_responses(rows, [row.old_logps if row else None for row in rows], policy_BT),
        advantages_BT=_on_responses(rows, [row.advantages if row else None for row in rows], policy_BT),
        mask_BT=batch.mask_BT * _column([row is not None for row in rows], policy_BT),
        sampler_logps_BT=_on_responses(rows, [row.rollout.sampler_logps if row else None for row in rows], policy_BT),
        entropy_BT=stats.entropy_BT,
    )
    return policy_loss(cfg.algorithm, inputs, counts)[0]


def _on_responses(rows: list[Row | None], values: list[list[float] | None], like_BT: Tensor) -> Tensor:
    """Per-response lists on their columns of the padded batch, zeros elsewhere and for conversations."""
    filled_BT = torch.zeros(like_BT.shape, dtype=torch.float32)
    for place, (row, numbers) in enumerate(zip(rows, values, strict=True)):
        if row is not None and numbers is not None:
            start = len(row.rollout.prompt_ids)
            filled_BT[place, start : start + len(numbers)] = torch.tensor(numbers)
    return filled_BT.to(like_BT.device)


def _column(flags: list[bool], like_BT: Tensor) -> Tensor:
    """[B, 1], 1 in the rows that are flagged; a batch of nothing still has a row."""
    return torch.tensor(flags or [False], dtype=torch.float32, device=like_BT.device)[:, None]


@torch.no_grad()
def _sums(readings: list[Reading], batch: TokenBatch, stats: TokenStats) -> dict[str, float]:
    own_BT = batch.mask_BT * _column([reading.row is not None for reading in readings], batch.mask_BT)
    data_BT = batch.mask_BT - own_BT
    assert stats.compared_BT is not None and stats.entropy_BT is not None
    rows = [reading.row for reading in readings]
    sampler_BT = _on_responses(rows, [row.rollout.sampler_logps if row else None for row in rows], own_BT)
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
