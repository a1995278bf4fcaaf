"""What a loss reports, in a form that micro-batches and ranks can add.

A statistic is never averaged where it arises. `policy_loss` returns sums over the tokens of the mask together with
their count; `merge` adds them (or takes the largest) over micro-batches and ranks; `summarise` divides once.
"""

from __future__ import annotations

from torch import Tensor

LOSS_SHARES = ("loss", "policy_loss", "kl_loss", "entropy_loss")  # parts of the global loss: added, never divided
TOKEN_SUMS = (  # divided by `tokens`
    "ratio",  # policy / old, as the row defines it
    "clip_low",  # share of tokens that the lower bound holds (A < 0)
    "clip_high",  # share of tokens that the upper bound holds (A > 0; cispo: any)
    "clip_dual",  # share of tokens held by dual clip
    "policy_drift",  # KL(old || policy), k3: how far this rollout's updates have moved the policy
    "kl",  # KL(policy || reference), k3, whatever estimator trains
    "entropy",  # of the policy's next-token distribution, nats
    "importance",  # raw exp(old - sampler), before the cap
    "sampler_gap",  # |old - sampler| log-prob
)
MAXIMA = ("ratio_max", "importance_max", "sampler_gap_max")

Statistics = dict[str, Tensor]


def merge(parts: list[Statistics]) -> Statistics:
    """Statistics of the union of several micro-batches or ranks."""
    merged: Statistics = {}
    for part in parts:
        for name, value in part.items():
            if name not in merged:
                merged[name] = value
            elif name in MAXIMA:
                merged[name] = merged[name].maximum(value)
            else:
                merged[name] = merged[name] + value
    return merged


def summarise(sums: Statistics) -> dict[str, float]:
    """Plain numbers: token sums divided by their count; 0 where the mini-batch had no token."""
    tokens = max(float(sums["tokens"]), 1.0)
    return {name: float(value) / (tokens if name in TOKEN_SUMS else 1.0) for name, value in sums.items()}
