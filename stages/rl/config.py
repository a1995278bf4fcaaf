"""`rl`: critic-free reinforcement learning on verifiable rewards: GRPO and its family (arXiv:2402.03300)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from pipeline.artifacts import Outline, Port
from pipeline.config import not_in_fingerprint
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.verifiers.config import RewardConfig

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to train; also the reference of the KL"),
    "problems": Port("dataset:problems", "training problems and held-out ones for the monitors"),
}
OUTPUTS = {"model": Port("model", "the trained policy")}


@dataclass
class RLConfig(TrainedStageConfig):
    kind: str = "rl"
    suites: dict[str, float] = field(default_factory=lambda: {"reasoning": 1.0})  # suite -> share of the prompts
    prompts_per_step: int = 32  # prompts that one optimizer step sees
    G: int = II("G")  # responses a prompt
    updates_per_rollout: int = 2  # a rollout samples prompts_per_step x updates_per_rollout prompts
    epochs_per_rollout: int = 1  # passes over the mini-batches of a rollout
    max_response_tokens: int = 128
    temperature: float = 1.0  # of sampling and of scoring
    top_p: float = 1.0
    top_k: int = 0
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    monitor_every_steps: int = not_in_fingerprint(20)  # held-out (dev) accuracy and behaviour
    monitor_problems: int = not_in_fingerprint(128)
    sync_tolerance: float = not_in_fingerprint(1e-2)  # mean |old - sampler| log-prob after a weight sync


def outline(cfg: RLConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    raise NotImplementedError
