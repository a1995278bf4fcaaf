"""From rows to one optimizer step: log-probs at rollout time, advantages, and the update itself.

Differs from the textbook: a row's `old_logps` are the trainer's own, never the sampler's; for the first mini-batch of a
rollout they are what the update itself computes (no step lies in between), which saves a forward pass. Counts are taken
over all ranks and after every mask is final, before any micro-batch is cut.
Suffixes: N responses of a rollout, B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.tracking import Metrics
from stages.parts.experience.collect import Experience, Row
from stages.parts.experience.rows import aligned, count_rows, of_response, row_batches, score_rows
from stages.parts.losses.advantages import AdvantageResult, group_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss, read_by_loss
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.statistics import merge, summarise
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.distributed import gather_objects
from stages.parts.policy.model import Policy
from stages.parts.policy.reference import Reference
from stages.parts.policy.scoring import TokenStats
from stages.parts.policy.train_engine import TrainEngine
from stages.rl.config import RLConfig
from stages.rl.process import advantages_of_steps


def resample_rounds(cfg: RLConfig) -> int | None:
    """How often `collect` may draw again in the place of groups without a signal; None: they stay."""
    return cfg.algorithm.max_resample_rounds if cfg.algorithm.zero_variance == "resample" else None


@torch.no_grad()
def score_logps(experience: Experience, engine: TrainEngine, reference: Reference | None, cfg: RLConfig) -> None:
    """Fill in what later updates compare with: the trainer's log-probs before any step, and the reference's."""
    policy = engine.policy
    if reference is not None:
        scored = score_rows(experience.rows, policy, lambda b: reference.logps(b, cfg.temperature).logps_BT, cfg)
        for row, logps in scored:
            row.reference_logps = logps
    in_reward = cfg.algorithm.beta > 0 and cfg.algorithm.kl_place == "reward"
    lazy = set() if in_reward else set(experience.minibatches[0])
    waiting = [row for row in experience.rows if row.group not in lazy]
    for row, logps in score_rows(waiting, policy, lambda b: engine.logps(b, cfg.temperature).logps_BT, cfg):
        row.old_logps = logps


def assign_advantages(experience: Experience, policy: Policy, cfg: RLConfig) -> Metrics:
    """Advantages of this rank's rows, computed from the rewards of all ranks."""
    if cfg.supervision == "process":
        result, metrics = advantages_of_steps(experience, policy, cfg)
    else:
        result, metrics = _advantages_of_outcomes(experience, cfg), {}
    places = {(brief.group, brief.sample_index): place for place, brief in enumerate(experience.briefs)}
    for row in experience.rows:
        place = places[row.group, row.rollout.sample_index]
        row.advantages = result.of_response(place, len(row.rollout.response_ids)).tolist()
        cut = cfg.algorithm.mask_truncated and row.rollout.truncated
        row.trained = bool(result.kept_N[place]) and not cut
    return metrics | {"advantages/abs_mean": float(result.advantages_N.abs().mean())}


def _advantages_of_outcomes(experience: Experience, cfg: RLConfig) -> AdvantageResult:
    briefs = experience.briefs
    kl_N = _kl_of_everyone(experience, cfg) if cfg.algorithm.beta > 0 and cfg.algorithm.kl_place == "reward" else None
    rewards_N = torch.tensor([brief.reward for brief in briefs], dtype=torch.float64)
    return group_advantages(
        rewards_N,
        torch.tensor([brief.group for brief in briefs]),
        ~rewards_N.isnan(),
        cfg.algorithm,
        kl_N=kl_N,
        filter_N=torch.tensor([brief.score for brief in briefs], dtype=torch.float64),
    )


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
    counts = count_rows(rows, cfg)
    if counts.sequences == 0:
        return {"train/empty_step": 1.0}
    parts = []
    for chosen, batch in row_batches(rows, engine.policy, cfg):
        stats = engine.logps(batch, cfg.temperature, entropy=True, reads=read_by_loss(cfg.algorithm))
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


def _loss_inputs(rows: list[Row], batch: TokenBatch, stats: TokenStats, cfg: RLConfig) -> LossInputs:
    policy_BT = stats.logps_BT
    if any(row.old_logps is None for row in rows):
        # No step lies between the rollout and this pass: the old policy is this one. Kept for later epochs.
        for place, row in enumerate(rows):
            row.old_logps = of_response(policy_BT.detach(), batch, place, row)
    has_reference = cfg.algorithm.beta > 0
    return LossInputs(
        policy_logps_BT=policy_BT,
        old_logps_BT=aligned(rows, [row.old_logps for row in rows], batch),
        advantages_BT=aligned(rows, [row.advantages for row in rows], batch),
        mask_BT=batch.mask_BT,
        sampler_logps_BT=aligned(rows, [row.rollout.sampler_logps for row in rows], batch),
        reference_logps_BT=aligned(rows, [row.reference_logps for row in rows], batch) if has_reference else None,
        entropy_BT=stats.entropy_BT,
        segment_ids_BT=batch.packed_segments_BT,
    )
