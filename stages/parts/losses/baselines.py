"""What a response is compared with: from rewards to advantages.

| function         | advantage of response i                                         | row                     |
|------------------|-----------------------------------------------------------------|-------------------------|
| `group_z_score`  | (r_i - group mean) / (group std + eps)                          | grpo, dapo, gspo, cispo |
| `group_centred`  | r_i - group mean                                                | dr_grpo                 |
| `leave_one_out`  | r_i - mean of the others of its group                           | rloo                    |
| `batch_whitened` | (c_i - batch mean of c) / (batch std of c + eps), c_i = r_i - group mean | reinforce_pp   |

What differs from the textbook: std is the *population* one unless `std: sample` says otherwise (DeepSeekMath does not
say; its numbers do not depend on it, ours should). Everything is float64: these are a few numbers, and they decide
the sign of every gradient.
Shapes: N responses; group_N holds the integer id of each one's group.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.parts.losses.config import AlgorithmConfig

CONSTANT_BELOW = 1e-6  # a population std under this is float noise: the values are equal


def group_sizes(group_N: Tensor) -> Tensor:
    return torch.bincount(group_N)[group_N]


def group_means(values_N: Tensor, group_N: Tensor) -> Tensor:
    """Mean of each response's group, written on the response."""
    counts_P = torch.bincount(group_N)
    sums_P = values_N.new_zeros(len(counts_P)).index_add_(0, group_N, values_N)
    return (sums_P / counts_P.clamp(min=1))[group_N]


def group_stds(values_N: Tensor, group_N: Tensor) -> Tensor:
    """Population standard deviation of each response's group, written on the response."""
    return group_means((values_N - group_means(values_N, group_N)).square(), group_N).sqrt()


def group_z_score(rewards_N: Tensor, group_N: Tensor, cfg: AlgorithmConfig) -> Tensor:
    centred_N = group_centred(rewards_N, group_N, cfg)
    if cfg.std == "none":
        return centred_N
    std_N = group_stds(rewards_N, group_N)
    if cfg.std == "sample":  # n - 1 in the place of n
        sizes_N = group_sizes(group_N).double()
        std_N = std_N * (sizes_N / (sizes_N - 1).clamp(min=1)).sqrt()
    return centred_N / (std_N + cfg.std_epsilon)


def group_centred(rewards_N: Tensor, group_N: Tensor, cfg: AlgorithmConfig) -> Tensor:
    return rewards_N - group_means(rewards_N, group_N)


def leave_one_out(rewards_N: Tensor, group_N: Tensor, cfg: AlgorithmConfig) -> Tensor:
    # r_i - (sum - r_i) / (n - 1) = (r_i - mean) * n / (n - 1)
    sizes_N = group_sizes(group_N).double()
    return (rewards_N - group_means(rewards_N, group_N)) * sizes_N / (sizes_N - 1).clamp(min=1)


def batch_whitened(rewards_N: Tensor, group_N: Tensor, cfg: AlgorithmConfig) -> Tensor:
    return whiten(centred_where_grouped(rewards_N, group_N, cfg), cfg.std_epsilon)


def centred_where_grouped(rewards_N: Tensor, group_N: Tensor, cfg: AlgorithmConfig) -> Tensor:
    """REINFORCE++ with baseline where prompts have several responses, plain REINFORCE++ where they have one."""
    in_groups = bool((group_sizes(group_N) > 1).any())
    return group_centred(rewards_N, group_N, cfg) if in_groups else rewards_N


def whiten(values_N: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / (population std + epsilon) over all elements; exactly 0 where they are all equal."""
    centred_N = values_N - values_N.mean()
    std = centred_N.square().mean().sqrt()
    return centred_N / (std + epsilon) if std >= CONSTANT_BELOW else torch.zeros_like(values_N)
