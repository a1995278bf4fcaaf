"""What a response's length takes from its reward: the soft overlong penalty.

DAPO (2503.14476, Eq. 13), with L the length of the response, L_max the limit and L_cache the buffer before it:

    0                                 L <= L_max - L_cache
    (L_max - L_cache - L) / L_cache   in between
    -1                                L > L_max

What differs from the textbook: nothing; L counts the response's tokens with its end token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def soft_overlong_penalty(lengths_N: Tensor, length_limit: int, buffer_tokens: int) -> Tensor:
    """Penalty in [-1, 0] to be added to the reward. buffer_tokens 0 switches it off."""
    if buffer_tokens == 0:
        return torch.zeros_like(lengths_N, dtype=torch.float64)
    return ((length_limit - buffer_tokens - lengths_N.double()) / buffer_tokens).clamp(-1.0, 0.0)
