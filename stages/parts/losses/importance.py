"""Truncated importance weights for a sampler whose numbers differ from the trainer's.

The sampler (another kernel, another precision, slightly stale weights) drew a token with probability
exp(sampler_logp), while the surrogate's ratio starts from the trainer's exp(old_logp). The token loss is multiplied
by min(exp(old_logp - sampler_logp), cap), a constant for the gradient.
What differs from the textbook: policy_logp never appears in this weight. The surrogate already carries
policy / old; a weight policy / sampler would count that move twice. The raw weight is reported beside the capped one.
"""

from __future__ import annotations

from torch import Tensor

from stages.parts.losses.ratios import bounded_log_ratio


def importance_weights(old_logps_BT: Tensor, sampler_logps_BT: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """(capped, raw) weights [B, T], both without gradient."""
    raw_BT = bounded_log_ratio(old_logps_BT, sampler_logps_BT).exp().detach()
    return raw_BT.clamp(max=cap), raw_BT
