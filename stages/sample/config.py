"""`sample`: rejection sampling. Many responses a problem, the verified and readable ones kept, a ledger of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.losses.published import unusual_settings
from stages.parts.policy.work import answering
from stages.parts.rollouts.config import STOP_TEXT, budget_faults, budget_fields, sampling_faults
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
    thinking_budget: int | None = None  # tokens of the think block, at most; what is cut short by it is not kept
    stop_text: str = STOP_TEXT
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(format=1.0))  # format 0: any form is kept
    min_language: float = 0.9  # drop reasoning with a smaller share of words in the prompt's language
    max_repetition: float = 0.5  # drop reasoning with a larger share of repeated 4-grams of words
    max_paragraph_characters: int = 2000

    def faults(self) -> list[Fault]:
        faults = [*super().faults(), *sampling_faults(self)]
        faults += [Fault(f"reward.{fault.key}", fault.problem, fault.remedy) for fault in self.reward.faults()]
        if self.reward.preference:
            faults.append(Fault("reward.preference", "needs a reward model, which sampling has not", "write 0"))
        if self.keep_per_problem < 1:
            faults.append(Fault("keep_per_problem", f"is {self.keep_per_problem}", "write at least 1"))
        for name in ("min_language", "max_repetition"):
            if not 0 <= getattr(self, name) <= 1:
                faults.append(Fault(name, f"is {getattr(self, name)}", "write a share in [0, 1]"))
        if self.temperature == 0 and self.samples > 1:
            problem = f"0 gives {self.samples} times the same response"
            faults.append(Fault("temperature", problem, "write 1.0, or samples=1"))
        return faults


def outline(cfg: SampleConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Upper bounds from the sizes of the problem set."""
    off = ["reward.preference", *budget_fields(cfg)]
    parameters = inputs["policy"].get("parameters")
    plan = Outline(parameters=parameters, warnings=unusual_settings(cfg, parameters), redundant=off)
    plan.faults += budget_faults("thinking_budget", cfg.thinking_budget, cfg, inputs["policy"])
    known: dict[str, dict[str, int]] | None = inputs["problems"].get("suites")
    if known is None:
        return plan
    sizes = {suite: known.get(suite, {}).get("train", 0) for suite in cfg.suites}
    for suite, size in sizes.items():
        if size == 0:
            problem = f"there are no train problems of {suite}"
            plan.faults.append(Fault("suites", problem, f"write suites of the problem set: {', '.join(sorted(known))}"))
    problems = min(sum(sizes.values()), cfg.max_problems)
    kept = problems * min(cfg.samples, cfg.keep_per_problem)
    plan.outputs = {"kept": {"rows": kept}, "ledger": {"rows": problems}}
    plan.tokens = problems * cfg.samples * cfg.max_response_tokens
    plan.work = answering(cfg, inputs["policy"], problems, cfg.samples)
    return plan
