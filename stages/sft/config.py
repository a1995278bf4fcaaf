"""`sft`: supervised fine-tuning of the policy on conversations; only assistant tokens carry loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Outline, Port
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.rollouts.config import SamplingConfig

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to fine-tune"),
    "data": Port("dataset:conversations", "conversations to learn from"),
    "general": Port("dataset:conversations", "a second source, mixed in with general_fraction", optional=True),
    "problems": Port("dataset:problems", "source=few_shot: problems to sample demonstrations for", optional=True),
}
OUTPUTS = {"model": Port("model", "the fine-tuned model")}


@dataclass
class SFTConfig(TrainedStageConfig):
    kind: str = "sft"
    source: str = "data"  # data | few_shot: sample demonstrations from the policy, keep the verified ones
    few_shot_examples: int = 4
    few_shot_sampling: SamplingConfig = field(default_factory=SamplingConfig)
    examples_per_step: int = 64  # conversations that one optimizer step sees
    general_fraction: float = 0.25  # share of the examples that come from `general`
    max_tokens: int = 512  # of one conversation
    over_length: str = "drop"  # drop | split | error; never cut, which would teach not to stop
    packing: bool = False  # several conversations a row, attention kept apart


def outline(cfg: SFTConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
