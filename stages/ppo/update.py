"""From a rollout to one optimizer step of policy and critic.

    r_t = [t is last] reward - beta * (old_logp_t - reference_logp_t)      A, R = GAE(r, V_old)
    loss = clipped surrogate(ratio, whitened A)      critic: 0.5 * max((V - R)^2, (clip(V) - R)^2)

Differs from the textbook: every denominator, mean and std is taken over all ranks and before any micro-batch is cut, so
neither changes the update; returns are made before advantages are whitened; V_t is the value of the state in which
token t was chosen (it comes from the column that predicts t), and the state after the last token is worth 0, cut off
or not. Mini-batches are the same in every epoch.
Suffixes: N responses of a rollout (this rank's), B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipeline.tracking import Metrics
from stages.parts.experience.collect import Experience, Row
from stages.parts.experience.rows import aligned, count_rows, row_batches, score_rows
from stages.parts.losses.algorithms import LossInputs, policy_loss, read_by_loss
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.reductions import token_weights
from stages.parts.losses.statistics import Statistics, merge, summarise
from stages.parts.losses.value import generalised_advantages, moments, token_rewards, value_loss, whiten_by
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.distributed import all_sum, barrier, gather_objects, world
from stages.parts.policy.reference import Reference
from stages.parts.policy.scoring import TokenStats
from stages.parts.policy.train_engine import TrainEngine
from stages.ppo.config import PPOConfig


@dataclass
class Learners:
    """What is trained; saved and loaded as one."""

    policy: TrainEngine
    critic: TrainEngine | None  # None: a value head on the policy

    def save(self, folder: Path) -> None:
        self.policy.save(folder)
        if self.critic is not None:
            if world()[0] == 0:
                (folder / "critic").mkdir()
            barrier()
            self.critic.save(folder / "critic")

    def load(self, folder: Path) -> None:
        self.policy.load(folder)
        if self.critic is not None:
            self.critic.load(folder / "critic")

    def values(self, batch: TokenBatch, stats: TokenStats) -> Tensor:
        """Values of the batch's masked tokens; `stats` are the policy's of the same batch."""
        values_BT = stats.values_BT if self.critic is None else self.critic.logps(batch).values_BT
        assert values_BT is not None
        return values_BT


@torch.no_grad()
def score_rollout(experience: Experience, learners: Learners, reference: Reference | None, cfg: PPOConfig) -> None:
    """Fill in what later updates compare with: log-probs and values before any step, and the reference's log-probs."""
    policy = learners.policy.policy

    def score(batch: TokenBatch) -> Tensor:
        stats = learners.policy.logps(batch, cfg.temperature)
        return torch.stack([stats.logps_BT, learners.values(batch, stats)], dim=-1)

    for row, pairs in score_rows(experience.rows, policy, score, cfg):
        row.old_logps, row.old_values = [list(column) for column in zip(*pairs, strict=True)]
    if reference is not None:
        scored = score_rows(experience.rows, policy, lambda b: reference.logps(b, cfg.temperature).logps_BT, cfg)
        for row, logps in scored:
            row.reference_logps = logps


def assign_advantages(experience: Experience, cfg: PPOConfig) -> Metrics:
    """GAE on this rank's rows, whitened by the moments of all ranks. What cannot be judged carries no loss."""
    algorithm = cfg.algorithm
    for row in experience.rows:
        cut = algorithm.mask_truncated and row.rollout.truncated
        row.trained = row.reward == row.reward and not cut
        row.advantages = row.returns = [0.0] * len(row.rollout.response_ids)
    rows = [row for row in experience.rows if row.trained]
    mask_NT = _padded([row.rollout.mask for row in rows])
    values_NT, kl_NT = _padded([row.old_values or [] for row in rows]), torch.zeros_like(mask_NT)
    if algorithm.beta > 0:
        old_NT, reference_NT = (
            _padded([numbers or [] for numbers in column])
            for column in ([row.old_logps for row in rows], [row.reference_logps for row in rows])
        )
        kl_NT = kl_estimate("k1", old_NT, reference_NT)
    rewards_N = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    rewards_NT = token_rewards(rewards_N, mask_NT, kl_NT, algorithm.beta)
    if algorithm.whiten_rewards:
        rewards_NT = whiten_by(rewards_NT, mask_NT, _moments(rewards_NT, mask_NT), centre=False)
    raw_NT, returns_NT = generalised_advantages(rewards_NT, values_NT, mask_NT, algorithm.gamma, algorithm.gae_lambda)
    spread = _moments(raw_NT, mask_NT)
    advantages_NT = whiten_by(raw_NT, mask_NT, spread) if algorithm.whiten_advantages else raw_NT
    for place, row in enumerate(rows):
        length = len(row.rollout.response_ids)
        row.advantages, row.returns = advantages_NT[place, :length].tolist(), returns_NT[place, :length].tolist()
    (unexplained, mean), (total, _) = (
        _spread(_moments(returns_NT - values_NT, mask_NT)),
        _spread(_moments(returns_NT, mask_NT)),
    )
    tokens, distance, value = all_sum([float(x.sum()) for x in (mask_NT, kl_NT * mask_NT, values_NT)])
    return {
        "advantages/std": _spread(spread)[0] ** 0.5,
        "critic/explained_variance": 1.0 - unexplained / total if total > 0 else float("nan"),
        "critic/bias": -mean,  # value minus return
        "critic/value": value / max(tokens, 1.0),
        "reward/kl": distance / max(tokens, 1.0),  # k1, nats a token
    }


def _padded(numbers: list[list[float]]) -> Tensor:
    if not numbers:
        return torch.zeros(0, 1, dtype=torch.float64)
    return pad_sequence([torch.tensor(row, dtype=torch.float64) for row in numbers], batch_first=True)


def _moments(values_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Over all ranks."""
    return torch.tensor(all_sum(moments(values_NT, mask_NT).tolist()), dtype=torch.float64)


def _spread(moments_3: Tensor) -> tuple[float, float]:
    """(variance, mean)."""
    count, total, squares = moments_3.tolist()
    mean = total / max(count, 1.0)
    return max(squares / max(count, 1.0) - mean * mean, 0.0), mean


def update(rows: list[Row], learners: Learners, cfg: PPOConfig, learning_rate: float, critic_rate: float) -> Metrics:
    """One optimizer step each on this rank's rows of one mini-batch. A mini-batch that trains nothing is survived."""
    rows = [row for row in rows if row.trained]
    counts = count_rows(rows, cfg)
    if counts.sequences == 0:
        return {"train/empty_step": 1.0}
    engine, critic = learners.policy, learners.critic
    parts, value_parts = [], []
    for chosen, batch in row_batches(rows, engine.policy, cfg):
        stats = engine.logps(batch, cfg.temperature, entropy=True, reads=read_by_loss(cfg.algorithm.actor()))
        loss, part = policy_loss(cfg.algorithm.actor(), _loss_inputs(chosen, batch, stats), counts)
        parts.append(part)
        if critic is None:
            critic_loss, value_part = _value_share(chosen, batch, learners.values(batch, stats), counts, cfg)
            loss = loss + cfg.value_weight * critic_loss
            value_parts.append(value_part)
        engine.backward(loss)
    result = engine.step(learning_rate)
    metrics = {f"train/{name}": value for name, value in _over_ranks(parts).items()} | {
        "train/grad_norm": result.grad_norm,
        "train/empty_step": 0.0,
        "train/skipped": float(result.skipped),
    }
    if critic is not None:
        return metrics | update_critic(rows, critic, cfg, counts, critic_rate)
    return metrics | _critic_metrics(value_parts)


def update_critic(
    rows: list[Row], critic: TrainEngine, cfg: PPOConfig, counts: BatchCounts, learning_rate: float
) -> Metrics:
    """One optimizer step of a separate critic. counts: of the whole mini-batch, over all ranks."""
    parts = []
    for chosen, batch in row_batches(rows, critic.policy, cfg):
        loss, part = _value_share(chosen, batch, critic.logps(batch).values_BT, counts, cfg)
        critic.backward(loss)
        parts.append(part)
    result = critic.step(learning_rate)
    return _critic_metrics(parts) | {
        "critic/grad_norm": result.grad_norm,
        "critic/learning_rate": learning_rate,
        "critic/skipped": float(result.skipped),
    }


def _critic_metrics(parts: list[Statistics]) -> Metrics:
    sums = _over_ranks(parts)
    return {"critic/loss": sums["loss"], "critic/clipped": sums["held"] / max(sums["tokens"], 1.0)}


def _value_share(
    rows: list[Row], batch: TokenBatch, values_BT: Tensor | None, counts: BatchCounts, cfg: PPOConfig
) -> tuple[Tensor, Statistics]:
    """This micro-batch's share of the value loss, and sums over its tokens."""
    assert values_BT is not None
    weights_BT = token_weights(cfg.algorithm.reduction, batch.mask_BT, counts, batch.packed_segments_BT)
    old_BT = aligned(rows, [row.old_values for row in rows], batch)
    returns_BT = aligned(rows, [row.returns for row in rows], batch)
    loss, held_BT = value_loss(values_BT, old_BT, returns_BT, weights_BT, cfg.algorithm.value_clip)
    return loss, {"loss": loss.detach(), "held": held_BT.sum(), "tokens": batch.mask_BT.sum()}


def _loss_inputs(rows: list[Row], batch: TokenBatch, stats: TokenStats) -> LossInputs:
    policy_BT = stats.logps_BT
    has_reference = all(row.reference_logps is not None for row in rows)
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


def _over_ranks(parts: list[Statistics]) -> dict[str, float]:
    here = {name: value.double().cpu() for name, value in merge(parts).items()}
    return summarise(merge(gather_objects([here])))
