"""A critic's side of PPO (1707.06347): generalised advantages, the clipped value loss, rewards per token.

    delta_t = r_t + gamma * V_{t+1} - V_t        A_t = delta_t + gamma * lambda * A_{t+1}        R_t = A_t + V_t

What differs from the textbook: time is the sequence of *masked* tokens, so padding, and later tool outputs between
the policy's tokens, are stepped over; a response ends in a terminal state of value 0. Whitening takes its mean and
std from additive moments, so that ranks can share one.
Shapes: B responses, T tokens, padded on the right.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(rewards_B: Tensor, mask_BT: Tensor, kl_BT: Tensor | None = None, beta: float = 0.0) -> Tensor:
    """The response's reward on its last masked token, minus beta * KL estimate (k1) on every one: [B, T]."""
    on_BT = mask_BT > 0
    is_last_BT = on_BT & (on_BT.flip(1).cumsum(1).flip(1) == 1)
    earned_BT = torch.where(is_last_BT, rewards_B.unsqueeze(1), 0.0)
    return earned_BT if kl_BT is None else earned_BT - torch.where(on_BT, beta * kl_BT, 0.0)


def generalised_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) [B, T] (1506.02438); zero outside the mask."""
    on_BT = mask_BT > 0
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = torch.zeros_like(values_BT[:, 0])
    next_advantage_B = torch.zeros_like(next_value_B)
    for t in reversed(range(values_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * gae_lambda * next_advantage_B
        next_advantage_B = torch.where(on_BT[:, t], advantage_B, next_advantage_B)
        next_value_B = torch.where(on_BT[:, t], values_BT[:, t], next_value_B)
        advantages_BT[:, t] = torch.where(on_BT[:, t], advantage_B, 0.0)
    return advantages_BT, advantages_BT + torch.where(on_BT, values_BT, 0.0)


def value_loss(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, weights_BT: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """(share of the loss, bool [B, T]: tokens that the clip holds).

    0.5 * max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2), weighted by `token_weights`; clip None: plain.
    """
    on_BT = weights_BT > 0
    values_BT = torch.where(on_BT, values_BT, 0.0)
    returns_BT = torch.where(on_BT, returns_BT, 0.0)
    error_BT = (values_BT - returns_BT).square()
    held_BT = torch.zeros_like(on_BT)
    if clip is not None:
        old_BT = torch.where(on_BT, old_values_BT, 0.0)
        clipped_error_BT = (values_BT.clamp(old_BT - clip, old_BT + clip) - returns_BT).square()
        held_BT = clipped_error_BT > error_BT
        error_BT = torch.maximum(error_BT, clipped_error_BT)
    return 0.5 * (weights_BT * error_BT).sum(), held_BT


def moments(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """(count, sum, sum of squares) of the masked values, float64: add over micro-batches and ranks."""
    values_BT = torch.where(mask_BT > 0, values_BT, 0.0).double()
    return torch.stack([(mask_BT > 0).double().sum(), values_BT.sum(), values_BT.square().sum()])


def whiten_by(
    values_BT: Tensor, mask_BT: Tensor, moments_3: Tensor, centre: bool = True, epsilon: float = 1e-8
) -> Tensor:
    """Masked values over their population std; `centre=False` keeps the mean (whitening of rewards); 0 elsewhere."""
    count, total, squares = (float(m) for m in moments_3)
    mean = total / max(count, 1.0)
    std = max(squares / max(count, 1.0) - mean * mean, 0.0) ** 0.5
    whitened_BT = (values_BT - mean) / (std + epsilon) + (0.0 if centre else mean)
    return torch.where(mask_BT > 0, whitened_BT, 0.0)
