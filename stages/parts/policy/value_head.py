"""A scalar head on a transformer's last hidden state: what is still to be earned, seen from each position.

Differs from the textbook: the head starts at zero, so a fresh critic expects nothing and adds no noise to the first
advantages; and it computes in float32 whatever the body does, since bfloat16 would round values to three digits. It is
a submodule of the model it sits on, hence in its parameters, its optimizer and its checkpoints.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.parts.policy.model import Policy, load_policy

NAME = "value_head"


class ValueHead(torch.nn.Module):
    def __init__(self, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(1)) if bias else None

    def forward(self, hidden_NH: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.linear(hidden_NH.float(), self.weight.float(), bias).squeeze(-1)


def add_value_head(model: torch.nn.Module, bias: bool = True) -> None:
    like = next(model.parameters())
    head = ValueHead(model.config.get_text_config().hidden_size, bias)
    model.add_module(NAME, head.to(like.device, like.dtype))


def load_critic(path: Path, dtype: str = "auto", bias: bool = True) -> Policy:
    """The body of the model in `path`, without its language-model head and with one for values."""
    policy = load_policy(path, dtype)
    body = policy.model.get_decoder()
    add_value_head(body, bias)
    return replace(policy, model=body)


def without_value_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The language model's own weights: what a sampler loads and a next stage gets."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(f"{NAME}.")}
