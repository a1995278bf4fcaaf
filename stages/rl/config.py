"""`rl`: critic-free reinforcement learning on verifiable rewards: GRPO and its family (arXiv:2402.03300)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from stages.parts.experience.config import ExperienceConfig, input_faults, redundant_weights, sampled_tokens
from stages.parts.losses.checks import NOISE_ALONE, SAME_BOUND, inert, pinned, rl_faults, unusual
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import CLIP_KNOBS, PAPERS
from stages.parts.losses.published import unusual_settings
from stages.parts.policy.outline import adapter_faults, trained_facts
from stages.parts.policy.work import practising, scorers
from stages.parts.rollouts.config import budget_fields

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to train; also the reference of the KL"),
    "problems": Port("dataset:problems", "training problems and held-out ones for the monitors"),
    "reward_model": Port("reward_model", "scores problems that name helpfulness or harmlessness", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained policy")}


@dataclass
class RLConfig(ExperienceConfig):
    kind: str = "rl"
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    supervision: str = "outcome"  # outcome: a response is rewarded | process: its arithmetic steps and its answer are
    step_numbers_once: bool = True  # process: a step may use each number of the question and each result once

    def faults(self) -> list[Fault]:
        return (
            super().faults()
            + process_faults(self)
            + rl_faults(
                self.algorithm,
                G=self.G,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                max_response_tokens=self.max_response_tokens,
            )
        )


def process_faults(cfg: RLConfig) -> list[Fault]:
    """What process supervision cannot go with."""
    if cfg.supervision == "outcome":
        return []
    if cfg.supervision != "process":
        return [Fault("supervision", f"'{cfg.supervision}' is unknown", "write outcome or process")]
    faults = []
    if cfg.algorithm.kl_place == "reward" and cfg.algorithm.beta > 0:
        problem = "is reward, but with supervision=process rewards belong to steps, the KL to tokens"
        faults.append(Fault("algorithm.kl_place", problem, "write algorithm.kl_place=loss algorithm.kl_estimator=k3"))
    if cfg.reward.shuffle:
        faults.append(Fault("reward.shuffle", "permutes outcomes, not steps", "write supervision=outcome"))
    if cfg.reward.preference:
        faults.append(Fault("reward.preference", "judges whole answers, not steps", "write supervision=outcome"))
    return faults


def outline(cfg: RLConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    policy = inputs["policy"]
    known = cfg.algorithm.name in PAPERS
    idle = _inert(cfg) if known else {}
    return Outline(
        outputs={"model": trained_facts(cfg, policy)},
        faults=input_faults(cfg, inputs) + adapter_faults(cfg, policy),
        warnings=(unusual(cfg.algorithm, updates_per_rollout=cfg.updates_per_rollout) if known else [])
        + unusual_settings(cfg, policy.get("parameters")),
        parameters=policy.get("parameters"),
        steps=cfg.steps,
        tokens=sampled_tokens(cfg),
        work=practising(cfg, policy, inputs["problems"], *scorers(cfg.algorithm.beta, inputs)),
        inert=idle,
        redundant=budget_fields(cfg) + _redundant(cfg, idle) + redundant_weights(cfg),
        pinned={f"algorithm.{knob}": why for knob, why in pinned(cfg.algorithm.name).items()} if known else {},
    )


def _redundant(cfg: RLConfig, idle: dict[str, str]) -> list[str]:
    """What cannot change one bit. With a KL in the reward old log-probs come from a pass of their own, so that ratios
    are 1 up to rounding only: clip bounds stay in."""
    rounded = cfg.algorithm.kl_place == "reward" and cfg.algorithm.beta > 0
    bounds = {f"algorithm.{knob}" for knob in (*CLIP_KNOBS, "ratio_max")} if rounded else set()
    return [key for key, why in idle.items() if why not in (NOISE_ALONE, SAME_BOUND) and key not in bounds]


def _inert(cfg: RLConfig) -> dict[str, str]:
    of_algorithm = inert(
        cfg.algorithm,
        G=cfg.G,
        updates_per_rollout=cfg.updates_per_rollout,
        epochs_per_rollout=cfg.epochs_per_rollout,
        steps=cfg.steps,
    )
    of_steps = {"step_numbers_once": "supervision=outcome looks at no steps"} if cfg.supervision == "outcome" else {}
    return of_algorithm | of_steps
