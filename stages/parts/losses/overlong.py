"""What a response's length does to its reward: the soft overlong penalty, and the price of being cut off.

DAPO (2503.14476, Eq. 13), with L the length of the response, L_max the limit and L_cache the buffer before it:

    0                                 L <= L_max - L_cache
    (L_max - L_cache - L) / L_cache   in between
    -1                                L > L_max

What differs from the textbook: nothing; L counts the response's tokens with its end token. `truncated_reward` is the
reward of a response without an end token whatever its text holds (0 in Dr. GRPO's code); the penalty still applies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.parts.losses.config import LengthRules


def soft_overlong_penalty(lengths_N: Tensor, length_limit: int, buffer_tokens: int) -> Tensor:
    """Penalty in [-1, 0] to be added to the reward. buffer_tokens 0 switches it off."""
    if buffer_tokens == 0:
        return torch.zeros_like(lengths_N, dtype=torch.float64)
    return ((length_limit - buffer_tokens - lengths_N.double()) / buffer_tokens).clamp(-1.0, 0.0)


def shape_rewards(
    rewards_N: Tensor, lengths_N: Tensor, truncated_N: Tensor, rules: LengthRules, length_limit: int
) -> Tensor:
    """Rewards after the length rules, float64. NaN (cannot be judged) stays NaN: that is the gold's fault.

    rewards_N: raw; lengths_N: response tokens; truncated_N: bool, no end token.
    """
    shaped_N = rewards_N.double()
    if rules.truncated_reward is not None:
        shaped_N = torch.where(truncated_N & ~shaped_N.isnan(), float(rules.truncated_reward), shaped_N)
    return shaped_N + soft_overlong_penalty(lengths_N, length_limit, rules.overlong_buffer_tokens)
