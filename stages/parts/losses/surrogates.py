"""What a token is pushed by: the loss of one token from its ratio and its advantage.

| surrogate   | token loss                                                      | no gradient where               |
|-------------|-----------------------------------------------------------------|---------------------------------|
| `clipped`   | -min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon_high) * A) | A > 0 above, A < 0 below a bound |
| `cispo`     | -stop_gradient(min(ratio, ratio_max)) * A * policy_logp         |                                 |
| `reinforce` | -A * policy_logp                                                |                                 |

`clipped` with `dual_clip` c (1912.09729) also holds the loss of A < 0 at -c * A once the ratio passes c.
What differs from the textbook: `ratio_max` is the absolute bound of the ratio (CISPO's 1 + epsilon_high), never an
offset; CISPO's lower bound is left out, as in the paper's own runs. With epsilon = 10 (DeepSeek-R1) the clip range
is [-9, 11], so only A > 0 with a ratio beyond 11 is ever clipped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.parts.losses.config import AlgorithmConfig


class Surrogate(NamedTuple):
    """Token losses and where a bound took the gradient away (or, for cispo, cut the weight); all [B, T]."""

    loss_BT: Tensor
    clipped_low_BT: Tensor  # bool: ratio under the lower bound, A < 0
    clipped_high_BT: Tensor  # bool: ratio over the upper bound, A > 0
    clipped_dual_BT: Tensor  # bool: held by dual clip


def clipped(ratio_BT: Tensor, advantages_BT: Tensor, policy_logps_BT: Tensor, cfg: AlgorithmConfig) -> Surrogate:
    low = 1.0 - cfg.epsilon
    high = 1.0 + (cfg.epsilon if cfg.epsilon_high is None else cfg.epsilon_high)
    gain_BT = torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(low, high) * advantages_BT)
    positive_BT, negative_BT = advantages_BT > 0, advantages_BT < 0
    dual_BT = torch.zeros_like(negative_BT)
    if cfg.dual_clip is not None:
        dual_BT = negative_BT & (ratio_BT > cfg.dual_clip)
        gain_BT = torch.where(dual_BT, cfg.dual_clip * advantages_BT, gain_BT)
    return Surrogate(-gain_BT, negative_BT & (ratio_BT < low), positive_BT & (ratio_BT > high), dual_BT)


def cispo(ratio_BT: Tensor, advantages_BT: Tensor, policy_logps_BT: Tensor, cfg: AlgorithmConfig) -> Surrogate:
    if cfg.ratio_max is None:
        raise ValueError("cispo needs algorithm.ratio_max, the absolute upper bound of the ratio")
    weight_BT = ratio_BT.detach().clamp(max=cfg.ratio_max)
    never_BT = torch.zeros_like(advantages_BT, dtype=torch.bool)
    bounded_BT = ratio_BT > cfg.ratio_max
    return Surrogate(-weight_BT * advantages_BT * policy_logps_BT, never_BT, bounded_BT, never_BT)


def reinforce(ratio_BT: Tensor, advantages_BT: Tensor, policy_logps_BT: Tensor, cfg: AlgorithmConfig) -> Surrogate:
    never_BT = torch.zeros_like(advantages_BT, dtype=torch.bool)
    return Surrogate(-advantages_BT * policy_logps_BT, never_BT, never_BT, never_BT)
