"""`problems`: problem sets with disjoint train, dev and test splits, and demonstrations for the first SFT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from pipeline.artifacts import Outline, Port
from pipeline.config import StageConfig
from stages.parts.data.config import DataConfig

RECIPE_VERSION = 1
INPUTS: dict[str, Port] = {}
OUTPUTS = {
    "problems": Port("dataset:problems", "rows of every suite, in splits train, dev and test that share no problem"),
    "demonstrations": Port("dataset:conversations", "reasoning demonstrations on training problems, for the cold start"),
    "general": Port("dataset:conversations", "demonstrations of the general suite, for SFT beside reasoning data"),
}


@dataclass
class ProblemsConfig(StageConfig):
    kind: str = "problems"
    seed: int = II("data.seed")
    evaluate: bool = False
    reasoning: DataConfig = II("data")  # suite "reasoning"
    general: DataConfig = II("general_data")  # suite "general"


def outline(cfg: ProblemsConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
