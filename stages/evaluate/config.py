"""`evaluate`: pass@k of a model on held-out problems, with the responses it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from pipeline.artifacts import Outline, Port
from pipeline.config import StageConfig

RECIPE_VERSION = 1
INPUTS = {
    "model": Port("model", "the model to evaluate"),
    "problems": Port("dataset:problems", "held-out problems"),
}
OUTPUTS = {
    "responses": Port("dataset:rollouts", "every response with its score"),
    "results": Port("metrics", "per problem: samples and how many were right, for paired comparisons"),
}


@dataclass
class EvaluateConfig(StageConfig):
    kind: str = "evaluate"
    seed: int = II("evaluation.seed")
    evaluate: bool = False
    split: str = II("evaluation.split")
    suites: list[str] = II("evaluation.suites")
    max_problems: int = II("evaluation.max_problems")
    samples: int = II("evaluation.samples")
    ks: list[int] = II("evaluation.ks")
    temperature: float = II("evaluation.temperature")
    top_p: float = II("evaluation.top_p")
    max_response_tokens: int = II("evaluation.max_response_tokens")
    require_box: bool = True


def outline(cfg: EvaluateConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
