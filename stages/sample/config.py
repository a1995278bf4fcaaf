"""`sample`: rejection sampling. Many responses a problem, the verified and readable ones kept, a ledger of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Outline, Port
from pipeline.config import StageConfig
from stages.parts.verifiers.config import RewardConfig

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model that samples"),
    "problems": Port("dataset:problems", "training problems to sample for"),
}
OUTPUTS = {
    "kept": Port("dataset:conversations", "verified, readable responses as conversations"),
    "ledger": Port("metrics", "sampled, kept, and dropped by reason"),
}


@dataclass
class SampleConfig(StageConfig):
    kind: str = "sample"
    suites: list[str] = field(default_factory=lambda: ["reasoning"])
    max_problems: int = 1024
    samples: int = 4  # responses a problem
    keep_per_problem: int = 2  # distinct kept responses a problem, at most
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_response_tokens: int = 128
    reward: RewardConfig = field(default_factory=RewardConfig)
    min_language: float = 0.9  # drop reasoning with a smaller share of words in the prompt's language
    max_repetition: float = 0.5  # drop reasoning with a larger share of repeated 4-grams of words
    max_paragraph_characters: int = 2000


def outline(cfg: SampleConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
