"""From rows to one optimizer step: log-probs at rollout time, advantages, and the update itself.

Differs from the textbook: a row's `old_logps` are the trainer's own, never the sampler's; for the first mini-batch of a
rollout they are what the update itself computes (no step lies in between), which saves a forward pass. Counts are taken
over all ranks and after every mask is final, before any micro-batch is cut.
Suffixes: N responses of a rollout, B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipeline.tracking import Metrics
from stages.parts.losses.advantages import group_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.statistics import merge, summarise
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pad_batch
from stages.parts.policy.distributed import all_sum, gather_objects
from stages.parts.policy.model import Policy
from stages.parts.policy.reference import Reference
from stages.parts.policy.scoring import TokenStats
from stages.parts.policy.train_engine import TrainEngine
from stages.rl.config import RLConfig
from stages.rl.experience import Experience, Row

Score = Callable[[TokenBatch, float], TokenStats]


@torch.no_grad()
def score_logps(experience: Experience, engine: TrainEngine, reference: Reference | None, cfg: RLConfig) -> None:
    """Fill in what later updates compare with: the trainer's log-probs before any step, and the reference's."""
    if reference is not None:
        for row, logps in _scored(experience.rows, engine.policy, reference.logps, cfg):
            row.reference_logps = logps
    in_reward = cfg.algorithm.beta > 0 and cfg.algorithm.kl_place == "reward"
    lazy = set() if in_reward else set(experience.minibatches[0])
    for row, logps in _scored(
        [row for row in experience.rows if row.group not in lazy], engine.policy, engine.logps, cfg
    ):
        row.old_logps = logps


def _scored(rows: list[Row], policy: Policy, score: Score, cfg: RLConfig) -> list[tuple[Row, list[float]]]:
    """Log-probs of every row's response tokens; a collective, so ranks without rows take part."""
    results = []
    for indices in aligned_microbatches([row.length for row in rows], cfg.tokens_per_microbatch):
        chosen = [rows[index] for index in indices]
        logps_BT = score(_batch(chosen, policy), cfg.temperature).logps_BT
        results += [(row, _of_response(logps_BT[place], row)) for place, row in enumerate(chosen)]
    return results


def assign_advantages(experience: Experience, cfg: RLConfig) -> Metrics:
    """Advantages of this rank's rows, computed from the rewards of all ranks."""
    briefs = experience.briefs
    kl_N = _kl_of_everyone(experience, cfg) if cfg.algorithm.beta > 0 and cfg.algorithm.kl_place == "reward" else None
    rewards_N = torch.tensor([brief.reward for brief in briefs], dtype=torch.float64)
    result = group_advantages(
        rewards_N,
        torch.tensor([brief.group for brief in briefs]),
        ~rewards_N.isnan(),
        cfg.algorithm,
        kl_N=kl_N,
        filter_N=torch.tensor([brief.score for brief in briefs], dtype=torch.float64),
    )
    places = {(brief.group, brief.sample_index): place for place, brief in enumerate(briefs)}
    for row in experience.rows:
        place = places[row.group, row.rollout.sample_index]
        row.advantages = result.of_response(place, len(row.rollout.response_ids)).tolist()
        cut = cfg.algorithm.mask_truncated and row.rollout.truncated
        row.trained = bool(result.kept_N[place]) and not cut
    return {"advantages/abs_mean": float(result.advantages_N.abs().mean())}


def _kl_of_everyone(experience: Experience, cfg: RLConfig) -> list[Tensor]:
    """k1 of each response's tokens (old policy against the reference) in the order of the briefs."""
    mine = []
    for row in experience.rows:
        assert row.old_logps is not None and row.reference_logps is not None
        old, reference = torch.tensor(row.old_logps), torch.tensor(row.reference_logps)
        kl = kl_estimate(cfg.algorithm.kl_estimator, old, reference)
        mine.append(((row.group, row.rollout.sample_index), kl.tolist()))
    everyone = dict(gather_objects(mine))
    return [torch.tensor(everyone[brief.group, brief.sample_index]) for brief in experience.briefs]


def update(rows: list[Row], engine: TrainEngine, cfg: RLConfig, learning_rate: float) -> Metrics:
    """One optimizer step on this rank's rows of one mini-batch. A mini-batch that trains nothing is survived."""
    rows = [row for row in rows if row.trained]
    counts = _count(rows, cfg)
    if counts.sequences == 0:
        return {"train/empty_step": 1.0}
    parts = []
    for indices in aligned_microbatches([row.length for row in rows], cfg.tokens_per_microbatch):
        chosen = [rows[index] for index in indices]
        batch = _batch(chosen, engine.policy)
        stats = engine.logps(batch, cfg.temperature, entropy=True)
        loss, part = policy_loss(cfg.algorithm, _loss_inputs(chosen, batch, stats, cfg), counts)
        engine.backward(loss)
        parts.append(part)
    result = engine.step(learning_rate)
    here = {name: value.double().cpu() for name, value in merge(parts).items()}
    metrics = summarise(merge(gather_objects([here])))
    return {f"train/{name}": value for name, value in metrics.items()} | {
        "train/grad_norm": result.grad_norm,
        "train/empty_step": 0.0,
        "train/skipped": float(result.skipped),
    }


def _count(rows: list[Row], cfg: RLConfig) -> BatchCounts:
    """Denominators over all ranks, after masking."""
    sequences, tokens = all_sum([len(rows), sum(len(row.rollout.response_ids) for row in rows)])
    return BatchCounts(sequences, tokens, cfg.max_response_tokens)


def _loss_inputs(rows: list[Row], batch: TokenBatch, stats: TokenStats, cfg: RLConfig) -> LossInputs:
    policy_BT = stats.logps_BT
    if any(row.old_logps is None for row in rows):
        # No step lies between the rollout and this pass: the old policy is this one. Kept for later epochs.
        for place, row in enumerate(rows):
            row.old_logps = _of_response(policy_BT[place].detach(), row)
    return LossInputs(
        policy_logps_BT=policy_BT,
        old_logps_BT=_aligned(rows, [row.old_logps for row in rows], policy_BT),
        advantages_BT=_aligned(rows, [row.advantages for row in rows], policy_BT),
        mask_BT=batch.mask_BT,
        sampler_logps_BT=_aligned(rows, [row.rollout.sampler_logps for row in rows], policy_BT),
        reference_logps_BT=_references(rows, policy_BT) if cfg.algorithm.beta > 0 else None,
        entropy_BT=stats.entropy_BT,
    )


def _references(rows: list[Row], like_BT: Tensor) -> Tensor:
    return _aligned(rows, [row.reference_logps for row in rows], like_BT)


def _batch(rows: list[Row], policy: Policy) -> TokenBatch:
    sequences = [row.rollout.prompt_ids + row.rollout.response_ids for row in rows]
    masks = [[0.0] * len(row.rollout.prompt_ids) + [1.0] * len(row.rollout.response_ids) for row in rows]
    return pad_batch(sequences, masks, policy.pad_id, policy.device)


def _of_response(values_T: Tensor, row: Row) -> list[float]:
    """The part of a padded row that is about the response."""
    start = len(row.rollout.prompt_ids)
    return values_T[start : start + len(row.rollout.response_ids)].tolist()


def _aligned(rows: list[Row], values: Sequence[list[float] | None], like_BT: Tensor) -> Tensor:
    """Per-response lists on their columns of the padded batch, zeros elsewhere."""
    filled_BT = torch.zeros(like_BT.shape, dtype=torch.float32)
    for place, (row, numbers) in enumerate(zip(rows, values, strict=True)):
        assert numbers is not None
        start = len(row.rollout.prompt_ids)
        filled_BT[place, start : start + len(numbers)] = torch.tensor(numbers)
    return filled_BT.to(like_BT.device)
