"""`base_model`: the model a chain starts from, trained from scratch on generated text or taken from a folder or hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from pipeline.artifacts import Outline, Port
from pipeline.config import local_path
from stages.parts.policy.config import TrainedStageConfig

RECIPE_VERSION = 1
INPUTS = {
    "problems": Port("dataset:problems", "held-out problems that the generated text must not contain", optional=True),
}
OUTPUTS = {"model": Port("model", "the base model")}


@dataclass
class ModelConfig:
    """A model to start from: `scratch` (an architecture trained here) or `pretrained` (a folder or a hub name)."""

    source: str = MISSING  # scratch | pretrained
    # scratch: a Qwen3 architecture with a character-level tokenizer
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384
    context_length: int = 512
    # pretrained
    name_or_path: str | None = local_path(or_hub=True)
    revision: str | None = None
    trust_remote_code: bool = False
    facts: dict[str, Any] = field(default_factory=dict)  # parameters, layers, vocab_size, ...: what a plan needs offline


@dataclass
class BaseModelConfig(TrainedStageConfig):
    kind: str = "base_model"
    model: ModelConfig = II("model")
    documents_per_step: int = 64
    families: list[str] = field(default_factory=list)  # of the generated text; empty: those of the problems
    reasoned_fraction: float = 0.3  # documents that reason step by step; the rest answer at once
    reflection_fraction: float = 0.05  # reasoned documents that check themselves


def outline(cfg: BaseModelConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
