"""One optimizer for every engine: AdamW (arXiv:1711.05101) or plain SGD, with the guard and the clipping.

Differs from torch.optim: the number of updates done is an attribute, not a tensor a parameter, so that a ZeRO
partition, a skipped step and a checkpoint written by another engine all agree on the bias correction; and a gradient
that is not finite, or a step that the engine refuses, changes nothing and is reported (`skipped`). The arithmetic is
torch's own `adamw`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from stages.parts.policy.config import OptimizerConfig

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ()}


class Update(torch.optim.Optimizer):
    """`clips`: the parameters here hold the whole gradient, so their norm is the global one (not under ZeRO 1-3, where
    DeepSpeed clips). `records`: keep the last gradient as optimizer state, for the invariance check."""

    def __init__(self, groups: list[dict[str, Any]], cfg: OptimizerConfig, clips: bool, records: bool = False) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": cfg.weight_decay})
        self.cfg, self.clips, self.records = cfg, clips, records
        self.updates = 0  # applied so far; set by the engine
        self.grad_norm = 0.0  # of the last step, before clipping
        self.refused = False  # set by the engine: the next step changes nothing
        self.skipped = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        if self.refused:
            self.skipped = True
            return
        self.create_states([param for param in self.parameters() if param.grad is not None])
        if self.records:
            for param in self.parameters():
                if param.grad is not None:
                    self.state[param]["gradient"].copy_(param.grad)
        if self.clips and not self._clip():
            return
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None and param.numel()]
            if params and self.cfg.name == "sgd":
                for param in params:
                    param.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(param.grad, alpha=-group["lr"])
            elif params:
                self._adamw(params, group)

    def create_states(self, params: Iterable[Tensor]) -> None:
        """Zero moments for parameters that have none yet. In place ever after: DeepSpeed holds views of them."""
        kinds = (*MOMENTS[self.cfg.name], *(["gradient"] if self.records else []))
        for param in params:
            for kind in kinds:
                if kind not in self.state[param]:
                    self.state[param][kind] = torch.zeros_like(param, dtype=torch.float32)

    def parameters(self) -> Iterable[Tensor]:
        return (param for group in self.param_groups for param in group["params"])

    def _clip(self) -> bool:
        grads = [param.grad for param in self.parameters() if param.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        self.grad_norm = float(norm)
        self.skipped = not bool(torch.isfinite(norm))
        if not self.skipped and 0 < self.cfg.max_grad_norm < self.grad_norm:
            torch._foreach_mul_(grads, self.cfg.max_grad_norm / (self.grad_norm + 1e-6))
        return not self.skipped

    def _adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        adamw(
            params,
            [param.grad for param in params],
            [self.state[param]["exp_avg"] for param in params],
            [self.state[param]["exp_avg_sq"] for param in params],
            [],
            [torch.tensor(float(self.updates), device=param.device) for param in params],  # incremented by the call
            fused=True,
            amsgrad=False,
            beta1=self.cfg.beta1,
            beta2=self.cfg.beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.cfg.epsilon,
            maximize=False,
        )


def parameter_groups(named: Iterable[tuple[str, Tensor]], cfg: OptimizerConfig) -> list[dict[str, Any]]:
    """Matrices decay, vectors (norms, biases) do not; one group where nothing decays."""
    params = [param for _, param in named]
    if cfg.weight_decay == 0:
        return [{"params": params, "weight_decay": 0.0}]
    matrices = [param for param in params if param.ndim > 1]
    vectors = [param for param in params if param.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
