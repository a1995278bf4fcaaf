"""How far the policy has moved from the one that sampled: one ratio a token, in three kinds.

| ratio            | value on token t of response y                                   | gradient w.r.t. policy_logp_t |
|------------------|------------------------------------------------------------------|-------------------------------|
| `token_ratio`    | exp(policy_logp_t - old_logp_t)                                  | itself                        |
| `sequence_ratio` | s = exp(mean over y of policy_logp - old_logp)                   | s                             |
| `no_ratio`       | 1                                                                | 0                             |

What differs from the textbook: `sequence_ratio` is written as GSPO-token (2507.18071, section 4.3): the value is s, and
each token carries the gradient of its own log-prob. Under a weight 1/|y| the sum over y then has the gradient of
GSPO (section 4.2), s * A * mean_t grad log pi_t, and it stays right where advantages differ within a response.
Log-ratios are held within +-20, so that a token which became impossible gives a large number and no infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.parts.losses.sequences import sequence_means

LOG_RATIO_BOUND = 20.0


def bounded_log_ratio(numerator_logps: Tensor, denominator_logps: Tensor) -> Tensor:
    """log(p / q) held within +-20; its exp is at most 4.9e8, safe in fp32."""
    return (numerator_logps - denominator_logps).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def token_ratio(policy_logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor, segments: Tensor | None) -> Tensor:
    return bounded_log_ratio(policy_logps_BT, old_logps_BT).exp()


def sequence_ratio(policy_logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor, segments: Tensor | None) -> Tensor:
    mean_BT = sequence_means((policy_logps_BT - old_logps_BT).detach(), mask_BT, segments)
    mean_BT = mean_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return (mean_BT + policy_logps_BT - policy_logps_BT.detach()).exp()


def no_ratio(policy_logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor, segments: Tensor | None) -> Tensor:
    return torch.ones_like(policy_logps_BT)
