"""`evaluate`: pass@k of a model on held-out problems, with the responses it gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.policy.work import answering
from stages.parts.rollouts.config import STOP_TEXT, budget_faults, sampling_faults

RECIPE_VERSION = 1
INPUTS = {
    "model": Port("model", "the model to evaluate"),
    "problems": Port("dataset:problems", "held-out problems"),
}
OUTPUTS = {
    "responses": Port("dataset:rollouts", "every response with its score"),
    "results": Port("metrics", "per problem: samples and how many were right, for paired comparisons"),
}
SPLITS = ("train", "dev", "test")


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
    modes: bool = False  # both thinking modes too (stages/evaluate/modes.py)
    budgets: list[int] = field(default_factory=list)  # thinking budgets in tokens, for accuracy against budget
    mode_samples: int = 1  # responses a problem in each mode and at each budget
    stop_text: str = STOP_TEXT

    def faults(self) -> list[Fault]:
        faults = [*super().faults(), *sampling_faults(self)]
        if self.split not in SPLITS:
            faults.append(Fault("split", f"'{self.split}' is unknown", "write test or dev"))
        if self.mode_samples < 1:
            faults.append(Fault("mode_samples", f"is {self.mode_samples}", "write at least 1"))
        if not self.suites:
            faults.append(
                Fault("suites", "is empty", "name suites of the problem set; evaluation.enabled=false for none")
            )
        if twice := [suite for suite in dict.fromkeys(self.suites) if self.suites.count(suite) > 1]:
            faults.append(Fault("suites", f"names {', '.join(twice)} more than once", "write each suite once"))
        return faults + k_faults(self.ks, self.samples)


def k_faults(ks: list[int], samples: int) -> list[Fault]:
    """Whether pass@k can be had from so many samples a problem, for every k."""
    if not ks:
        return [Fault("ks", "is empty: nothing would be measured", f"write [1] or more, up to {max(samples, 1)}")]
    if min(ks) < 1:
        return [Fault("ks", f"pass@{min(ks)} means nothing", f"write numbers from 1 to {max(samples, 1)}")]
    if max(ks) > samples:
        remedy = f"write samples={max(ks)}, or ks up to {samples}"
        return [Fault("ks", f"pass@{max(ks)} cannot be had from {samples} samples", remedy)]
    return []


def outline(cfg: EvaluateConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Rows and tokens from the sizes of the problem set."""
    plan = Outline(parameters=inputs["model"].get("parameters"), redundant=_off(cfg))
    for budget in cfg.budgets:
        plan.faults += budget_faults("budgets", budget, cfg, inputs["model"])
    known: dict[str, dict[str, int]] | None = inputs["problems"].get("suites")
    if known is None or cfg.split not in SPLITS:
        return plan
    sizes = {suite: min(known.get(suite, {}).get(cfg.split, 0), cfg.max_problems) for suite in cfg.suites}
    problems = sum(sizes.values())
    for suite in [suite for suite, size in sizes.items() if size == 0]:  # left out, nobody would miss it
        problem = f"there are no {cfg.split} problems of '{suite}'"
        plan.faults.append(Fault("suites", problem, f"write suites of the problem set: {', '.join(sorted(known))}"))
    if cfg.temperature == 0 and cfg.samples > 1:
        plan.inert["samples"] = "at temperature 0 all samples of a problem are the same"
    plan.outputs = {"responses": {"rows": problems * cfg.samples}, "results": {"rows": problems, "split": cfg.split}}
    plan.tokens = problems * cfg.samples * cfg.max_response_tokens
    settings = (2 if cfg.modes else 0) + len(cfg.budgets)  # what else the problems are answered in
    plan.work = answering(cfg, inputs["model"], problems, cfg.samples, more=problems * settings * cfg.mode_samples)
    return plan


def _off(cfg: EvaluateConfig) -> list[str]:
    """Fields that came later and do nothing where they are off."""
    off = [] if cfg.modes else ["modes"]
    off += [] if cfg.budgets else ["budgets", "stop_text"]
    return off + ([] if cfg.modes or cfg.budgets else ["mode_samples"])
