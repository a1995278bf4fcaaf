"""`rl`: critic-free reinforcement learning on verifiable rewards: GRPO and its family (arXiv:2402.03300)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from stages.parts.experience.config import ExperienceConfig, input_faults, sampled_tokens
from stages.parts.losses.checks import NOISE_ALONE, inert, pinned, rl_faults, unusual
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import PAPERS

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to train; also the reference of the KL"),
    "problems": Port("dataset:problems", "training problems and held-out ones for the monitors"),
}
OUTPUTS = {"model": Port("model", "the trained policy")}


@dataclass
class RLConfig(ExperienceConfig):
    kind: str = "rl"
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)

    def faults(self) -> list[Fault]:
        return super().faults() + rl_faults(
            self.algorithm,
            G=self.G,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_response_tokens=self.max_response_tokens,
        )


def outline(cfg: RLConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    policy = inputs["policy"]
    known = cfg.algorithm.name in PAPERS
    idle = _inert(cfg) if known else {}
    return Outline(
        outputs={"model": policy},
        faults=input_faults(cfg, inputs),
        warnings=unusual(cfg.algorithm, G=cfg.G, updates_per_rollout=cfg.updates_per_rollout) if known else [],
        parameters=policy.get("parameters"),
        steps=cfg.steps,
        tokens=sampled_tokens(cfg),
        inert=idle,
        redundant=[key for key, why in idle.items() if why != NOISE_ALONE],
        pinned={f"algorithm.{knob}": why for knob, why in pinned(cfg.algorithm.name).items()} if known else {},
    )


def _inert(cfg: RLConfig) -> dict[str, str]:
    return inert(
        cfg.algorithm,
        G=cfg.G,
        updates_per_rollout=cfg.updates_per_rollout,
        epochs_per_rollout=cfg.epochs_per_rollout,
        steps=cfg.steps,
    )
