"""The algorithms: one row each, and the one loss they share.

    loss = sum over tokens of  w * ( importance * surrogate(ratio, A)  +  beta * KL  -  entropy_bonus * H )

| row            | paper      | advantage          | ratio    | surrogate            | w                   | KL     |
|----------------|------------|--------------------|----------|----------------------|---------------------|--------|
| `grpo`         | 2402.03300 | group z-score      | token    | clipped              | `sequence_mean`     | loss   |
| `dr_grpo`      | 2503.20783 | r - group mean     | token    | clipped              | `constant_length`   | none   |
| `dapo`         | 2503.14476 | group z-score      | token    | clipped, 0.2 / 0.28  | `token_mean`        | none   |
| `gspo`         | 2507.18071 | group z-score      | sequence | clipped, 3e-4 / 4e-4 | `sequence_mean`     | none   |
| `cispo`        | 2506.13585 | group z-score      | token    | cispo, `ratio_max`   | `token_mean`        | none   |
| `rloo`         | 2402.14740 | r - mean of others | none     | reinforce            | `sequence_sum_mean` | reward |
| `reinforce_pp` | 2501.03262 | whitened in batch  | token    | clipped              | `token_mean`        | either |

KL in the loss is k3 (grpo), in the reward k1. REINFORCE++ with one response a prompt pays k1 in the reward, token by
token; with several it first subtracts the group mean ("w/ baseline") and has k2 in the loss.
A row fixes what makes the algorithm: advantage, ratio, surrogate. What cuts across (reduction, KL, clip bounds,
zero-variance groups, ...) is `AlgorithmConfig`; `papers.py` knows what each paper sets. A new algorithm is one row
here, one there and one YAML.

What differs from the textbook: one formula instead of a class per algorithm; every sum has a global denominator
(`counts.py`), so any micro-batch split or number of ranks gives the same gradient; what lies outside the mask is
zeroed *before* any exp, so that padding can hold anything.
Shapes: B rows, T tokens. Token-aligned: position t of every [B, T] tensor is about token t of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.parts.losses.baselines import batch_whitened, group_centred, group_z_score, leave_one_out
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.importance import importance_weights
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.ratios import no_ratio, sequence_ratio, token_ratio
from stages.parts.losses.reductions import token_weights
from stages.parts.losses.statistics import Statistics
from stages.parts.losses.surrogates import Surrogate, cispo, clipped, reinforce


@dataclass(frozen=True)
class Algorithm:
    """One row of the table above."""

    advantage: Callable[[Tensor, Tensor, AlgorithmConfig], Tensor]  # rewards_N, group_N -> advantages_N
    ratio: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # policy, old, mask, segments -> ratio_BT
    surrogate: Callable[[Tensor, Tensor, Tensor, AlgorithmConfig], Surrogate]  # ratio, A, policy_logps -> token loss
    kl_to_go: bool = False  # KL in the reward is paid token by token, instead of once a response


ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Algorithm(group_z_score, token_ratio, clipped),
    "dr_grpo": Algorithm(group_centred, token_ratio, clipped),
    "dapo": Algorithm(group_z_score, token_ratio, clipped),
    "gspo": Algorithm(group_z_score, sequence_ratio, clipped),
    "cispo": Algorithm(group_z_score, token_ratio, cispo),
    "rloo": Algorithm(leave_one_out, no_ratio, reinforce),
    "reinforce_pp": Algorithm(batch_whitened, token_ratio, clipped, kl_to_go=True),
}


@dataclass
class LossInputs:
    """One micro-batch. Whose probability a number is stands in its name; all [B, T], only policy_* carry gradient."""

    policy_logps_BT: Tensor  # of the sampled tokens, under the policy that is being trained
    old_logps_BT: Tensor  # under the trainer's policy at rollout time
    advantages_BT: Tensor
    mask_BT: Tensor  # 1 on tokens that the policy produced and that stay in the loss
    sampler_logps_BT: Tensor | None = None  # under the sampler, at rollout time
    reference_logps_BT: Tensor | None = None
    entropy_BT: Tensor | None = None  # of the policy's next-token distribution
    segment_ids_BT: Tensor | None = None  # packed rows: 1.. per sequence, 0 padding; None: a row is a sequence


def policy_loss(cfg: AlgorithmConfig, inputs: LossInputs, counts: BatchCounts) -> tuple[Tensor, Statistics]:
    """This micro-batch's share of the mini-batch's loss, and statistics to be merged over micro-batches and ranks.

    Backpropagate the share of every micro-batch on every rank and *sum* the gradients; divide by nothing.
    counts: of the whole mini-batch, after masking. Raises ValueError where the config needs an input that is absent.
    """
    row = ALGORITHMS[cfg.name]
    x = _masked(inputs)
    weights_BT = token_weights(cfg.reduction, x.mask_BT, counts, x.segment_ids_BT)
    ratio_BT = row.ratio(x.policy_logps_BT, x.old_logps_BT, x.mask_BT, x.segment_ids_BT)
    surrogate = row.surrogate(ratio_BT, x.advantages_BT, x.policy_logps_BT, cfg)
    token_loss_BT = surrogate.loss_BT
    if cfg.importance_cap is not None:
        sampler_BT = _need(x.sampler_logps_BT, "sampler_logps_BT", "importance_cap")
        token_loss_BT = importance_weights(x.old_logps_BT, sampler_BT, cfg.importance_cap)[0] * token_loss_BT
    shares = {"policy_loss": (weights_BT * token_loss_BT).sum()}
    if cfg.beta > 0 and cfg.kl_place == "loss":
        reference_BT = _need(x.reference_logps_BT, "reference_logps_BT", "beta")
        kl_BT = kl_estimate(cfg.kl_estimator, x.policy_logps_BT, reference_BT)
        shares["kl_loss"] = cfg.beta * (weights_BT * kl_BT).sum()
    if cfg.entropy_bonus != 0:
        entropy_BT = _need(x.entropy_BT, "entropy_BT", "entropy_bonus")
        shares["entropy_loss"] = -cfg.entropy_bonus * (weights_BT * entropy_BT).sum()
    loss = torch.stack(list(shares.values())).sum()
    report = {name: share.detach() for name, share in {"loss": loss, **shares}.items()}
    return loss, report | _report(x, ratio_BT, surrogate)


def read_by_loss(cfg: AlgorithmConfig) -> tuple[str, ...]:
    """What of a forward pass the loss has a gradient to; the rest is only watched."""
    return ("logps", "entropy") if cfg.entropy_bonus != 0 else ("logps",)


def _masked(inputs: LossInputs) -> LossInputs:
    """Zeros wherever the mask is zero: padding may hold NaN or -inf, and 0 * NaN is NaN."""
    dtype = inputs.policy_logps_BT.dtype
    on_BT = inputs.mask_BT > 0

    def keep(values_BT: Tensor | None) -> Tensor | None:
        return None if values_BT is None else torch.where(on_BT, values_BT, 0.0)

    return replace(
        inputs,
        policy_logps_BT=keep(inputs.policy_logps_BT),
        old_logps_BT=keep(inputs.old_logps_BT.detach()),
        advantages_BT=keep(inputs.advantages_BT.detach().to(dtype)),
        mask_BT=inputs.mask_BT.to(dtype),
        sampler_logps_BT=keep(inputs.sampler_logps_BT),
        reference_logps_BT=keep(inputs.reference_logps_BT),
        entropy_BT=keep(inputs.entropy_BT),
    )


def _need(values_BT: Tensor | None, name: str, knob: str) -> Tensor:
    if values_BT is None:
        raise ValueError(f"algorithm.{knob} needs LossInputs.{name}")
    return values_BT


@torch.no_grad()
def _report(x: LossInputs, ratio_BT: Tensor, surrogate: Surrogate) -> Statistics:
    mask_BT = x.mask_BT
    on_BT = mask_BT > 0
    values = {
        "ratio": ratio_BT,
        "clip_low": surrogate.clipped_low_BT,
        "clip_high": surrogate.clipped_high_BT,
        "clip_dual": surrogate.clipped_dual_BT,
        "policy_drift": kl_estimate("k3", x.old_logps_BT, x.policy_logps_BT),
    }
    maxima = {"ratio_max": ratio_BT}
    if x.reference_logps_BT is not None:
        values["kl"] = kl_estimate("k3", x.policy_logps_BT, x.reference_logps_BT)
    if x.entropy_BT is not None:
        values["entropy"] = x.entropy_BT
    if x.sampler_logps_BT is not None:
        gap_BT = (x.old_logps_BT - x.sampler_logps_BT).abs()
        raw_BT = importance_weights(x.old_logps_BT, x.sampler_logps_BT, float("inf"))[1]
        values |= {"importance": raw_BT, "sampler_gap": gap_BT}
        maxima |= {"importance_max": raw_BT, "sampler_gap_max": gap_BT}
    sums = {name: (value_BT * mask_BT).sum() for name, value_BT in values.items()}
    tops = {name: torch.where(on_BT, value_BT, 0.0).max() for name, value_BT in maxima.items()}
    return {**sums, **tops, "tokens": mask_BT.sum()}
