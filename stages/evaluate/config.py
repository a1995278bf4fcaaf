"""`evaluate`: pass@k of a model on held-out problems, with the responses it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.rollouts.config import sampling_faults

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

    def faults(self) -> list[Fault]:
        faults = [*super().faults(), *sampling_faults(self)]
        if self.split not in ("train", "dev", "test"):
            faults.append(Fault("split", f"'{self.split}' is unknown", "write test or dev"))
        too_many = [k for k in self.ks if not 1 <= k <= self.samples]
        if too_many:
            remedy = f"raise samples to {max(self.ks)} or shorten ks"
            faults.append(Fault("ks", f"pass@{too_many[0]} cannot be had from {self.samples} samples", remedy))
        return faults


def outline(cfg: EvaluateConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Rows and tokens from the sizes of the problem set; a suite that it lacks is left out of the numbers."""
    plan = Outline(parameters=inputs["model"].get("parameters"))
    known: dict[str, dict[str, int]] | None = inputs["problems"].get("suites")
    if known is None:
        return plan
    sizes = {suite: min(known.get(suite, {}).get(cfg.split, 0), cfg.max_problems) for suite in cfg.suites}
    problems = sum(sizes.values())
    if problems == 0:
        problem = f"there are no {cfg.split} problems of {', '.join(cfg.suites)}"
        plan.faults.append(Fault("suites", problem, f"write suites of the problem set: {', '.join(sorted(known))}"))
    if cfg.temperature == 0 and cfg.samples > 1:
        plan.inert["samples"] = "at temperature 0 all samples of a problem are the same"
    plan.outputs = {"responses": {"rows": problems * cfg.samples}, "results": {"rows": problems, "split": cfg.split}}
    plan.tokens = problems * cfg.samples * cfg.max_response_tokens
    return plan
