"""What every kind that learns from its own samples has in common, as configuration. Importable without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault
from pipeline.config import not_in_fingerprint, shared_by_ranks
from stages.parts.losses.config import LengthRules
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.rollouts.config import STOP_TEXT, budget_faults
from stages.parts.verifiers.config import LEARNED_PARTS, RULE_PARTS, RewardConfig


@dataclass
class ExperienceConfig(TrainedStageConfig):
    """Problems, sampling, reward and monitors of a stage that samples and updates in turn."""

    suites: dict[str, float] = field(default_factory=lambda: {"reasoning": 1.0})  # suite -> share of the prompts
    prompts_per_step: int = shared_by_ranks(32)  # prompts that one optimizer step sees
    G: int = II("G")  # responses a prompt
    updates_per_rollout: int = 2  # a rollout samples prompts_per_step x updates_per_rollout prompts
    epochs_per_rollout: int = 1  # passes over the mini-batches of a rollout
    max_response_tokens: int = 128
    temperature: float = 1.0  # of sampling and of scoring
    top_p: float = 1.0
    top_k: int = 0
    thinking_budget: int | None = None  # tokens of the think block, at most; None: as many as there is room for
    stop_text: str = STOP_TEXT  # written by the engine where the budget is used up; carries no loss
    algorithm: LengthRules = field(default_factory=LengthRules)  # each kind has its own
    reward: RewardConfig = field(default_factory=RewardConfig)
    monitor_every_steps: int = not_in_fingerprint(20)  # held-out (dev) accuracy and behaviour
    monitor_problems: int = not_in_fingerprint(128)  # of each suite of the problem set, also those not trained on
    monitor_samples: int = not_in_fingerprint(4)  # responses to each: pass@1, pass@2, pass@4
    packing: bool = not_in_fingerprint(False)  # several sequences a row of scoring and update, attention kept apart
    sync_tolerance: float = not_in_fingerprint(1e-2)  # mean |old - sampler| log-prob after a weight sync

    def faults(self) -> list[Fault]:
        faults = super().faults()
        counts = ("prompts_per_step", "updates_per_rollout", "epochs_per_rollout", "max_response_tokens")
        for key in (*counts, "monitor_every_steps", "monitor_problems", "monitor_samples"):
            if getattr(self, key) < 1:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write 1 or more"))
        if self.top_k < 0:
            faults.append(Fault("top_k", f"is {self.top_k}", "write 0 (off) or a positive number"))
        if not self.suites or not all(0 < share < math.inf for share in self.suites.values()):
            faults.append(Fault("suites", f"is {self.suites}", "give every suite a positive share, {reasoning: 1.0}"))
        if not 0 < self.top_p <= 1:
            faults.append(Fault("top_p", f"is {self.top_p}", "write a share in (0, 1]"))
        faults += [Fault(f"algorithm.{f.key}", f.problem, f.remedy) for f in self.algorithm.faults()]
        faults += [Fault(f"reward.{f.key}", f.problem, f.remedy) for f in self.reward.faults()]
        return faults


def sampled_tokens(cfg: ExperienceConfig) -> int:
    """At most so many response tokens are sampled for training."""
    return cfg.steps * cfg.prompts_per_step * cfg.G * cfg.max_response_tokens // max(cfg.epochs_per_rollout, 1)


def input_faults(cfg: ExperienceConfig, inputs: dict[str, dict[str, Any]]) -> list[Fault]:
    """What does not fit the declared facts of the ports; nothing where they are not known."""
    suites = inputs["problems"].get("suites", {})
    faults = [
        Fault("suites", f"names '{suite}', the problems have {', '.join(sorted(suites))}", "write one of these")
        for suite in cfg.suites
        if suites and suite not in suites
    ]
    context = inputs["policy"].get("context_length")
    if context is not None and cfg.max_response_tokens >= context:
        problem = f"is {cfg.max_response_tokens}, the model's whole context is {context} tokens"
        faults.append(Fault("max_response_tokens", problem, f"leave room for the prompt: write {context // 2}"))
    faults += budget_faults("thinking_budget", cfg.thinking_budget, cfg, inputs["policy"])
    return faults + preference_faults(cfg, inputs)


def preference_faults(cfg: ExperienceConfig, inputs: dict[str, dict[str, Any]]) -> list[Fault]:
    """Parts of the reward that training problems name (`scored_by` of the suite) and nobody scores or weighs."""
    wire = "write stages.NAME.inputs.reward_model=reward_model.model (a stage of kind reward_model)"
    if "reward_model" not in inputs and cfg.reward.preference > 0:
        problem = f"is {cfg.reward.preference}, and there is no reward model"
        return [Fault("reward.preference", problem, f"{wire}, or stages.NAME.reward.preference=0")]
    faults = []
    named: dict[str, list[str]] = inputs["problems"].get("scored_by", {})
    for suite, parts in {suite: named[suite] for suite in cfg.suites if suite in named}.items():
        learned = [part for part in parts if part in LEARNED_PARTS]
        if learned and "reward_model" not in inputs:
            problem = f"'{suite}' is scored by {learned[0]}, which a reward model tells, and none is wired"
            faults.append(Fault("suites", problem, f"{wire}, or ~stages.NAME.suites.{suite}"))
        elif not any(cfg.reward.weight(part) for part in parts if part in (*LEARNED_PARTS, *RULE_PARTS)):
            problem = f"every part that scores '{suite}' ({', '.join(parts)}) has weight 0"
            remedy = f"give one a weight, stages.NAME.reward.preference=1, or write ~stages.NAME.suites.{suite}"
            faults.append(Fault("reward", problem, remedy))
    return faults


def redundant_weights(cfg: ExperienceConfig) -> list[str]:
    """A weight that came later and is off cannot change one bit of what was there before it."""
    return [] if cfg.reward.preference else ["reward.preference"]
