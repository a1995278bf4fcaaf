"""`distill`: a student learns from a teacher's verified text (output distillation; logits come with a later issue)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Outline, Port
from stages.parts.policy.config import TrainedStageConfig

RECIPE_VERSION = 1
INPUTS = {
    "student": Port("model", "the model to train"),
    "data": Port("dataset:conversations", "the teacher's verified responses"),
    "general": Port("dataset:conversations", "a second source, mixed in with general_fraction", optional=True),
    "teacher": Port("model", "checked for the same tokenizer; read only by losses that need its logits", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained student")}


@dataclass
class DistillConfig(TrainedStageConfig):
    kind: str = "distill"
    examples_per_step: int = 64
    general_fraction: float = 0.25
    max_tokens: int = 512
    over_length: str = "drop"  # drop | split | error
    packing: bool = False


def outline(cfg: DistillConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
