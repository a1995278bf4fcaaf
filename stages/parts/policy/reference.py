"""A frozen model that scores: the reference of a KL, or a teacher, which gives whole distributions (soft_targets.py).

Always loaded from its own folder (the stage's input checkpoint): a reference that is "the policy with its adapter off"
is the wrong model as soon as an earlier stage trained an adapter (trl#3194).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pipeline.tracking import Context
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.scoring import Scorer, TokenStats


class Reference(Protocol):
    """Scores, never trains. All ranks call together."""

    policy: Policy

    def logps(self, batch: TokenBatch, temperature: float = 1.0) -> TokenStats: ...

    def before_head(self, batch: TokenBatch) -> Tensor:
        """hidden_NH of the N positions where mask_BT is not 0, in their order (scoring.py)."""

    def logits(self, hidden_CH: Tensor) -> Tensor:
        """logits_CV of any part of `before_head`; not a collective."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Become the model with these weights (reference reset of iterative GRPO); HF names, whole tensors."""


class TorchReference:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.policy.model.requires_grad_(False)
        self.scorer = Scorer(policy.model)

    @torch.no_grad()
    def logps(self, batch: TokenBatch, temperature: float = 1.0) -> TokenStats:
        return TokenStats(*self.scorer(batch, temperature, False))

    @torch.no_grad()
    def before_head(self, batch: TokenBatch) -> Tensor:
        return self.scorer(batch, 1.0, False, before_head=True)[0]

    def logits(self, hidden_CH: Tensor) -> Tensor:
        return self.scorer.logits(hidden_CH)

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        own = self.policy.model.state_dict()
        if set(own) != set(state):
            raise ValueError(f"another model's weights: {sorted(set(own) ^ set(state))[:3]}")
        for name, tensor in own.items():
            tensor.copy_(state[name])


def load_reference(path: Path, cfg: TrainedStageConfig, context: Context) -> Reference:
    """The model in `path`, partitioned over the ranks under ZeRO-3, whole on each rank otherwise."""
    return frozen(load_policy(path, cfg.dtype), cfg)


def frozen(policy: Policy, cfg: TrainedStageConfig, is_teacher: bool = False) -> Reference:
    """`policy` as a reference; `before_head` and `logits` are for a teacher alone."""
    if cfg.engine.kind == "deepspeed" and cfg.engine.zero_stage == 3:
        from stages.parts.policy.deepspeed_engine import PartitionedReference

        return PartitionedReference(policy, cfg, is_teacher)
    return TorchReference(policy)
