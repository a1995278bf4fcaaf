"""`sft`: supervised fine-tuning of the policy on conversations; only assistant tokens carry loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.artifacts import Fault, Outline, Port, Work
from stages.parts.policy.config import SupervisedStageConfig
from stages.parts.policy.outline import supervised_outline
from stages.parts.policy.work import answering
from stages.parts.rollouts.config import SamplingConfig, budget_faults, budget_fields

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to fine-tune"),
    "data": Port("dataset:conversations", "conversations to learn from; source=few_shot does without", optional=True),
    "general": Port("dataset:conversations", "a second source, mixed in with general_fraction", optional=True),
    "problems": Port("dataset:problems", "source=few_shot: problems to sample demonstrations for", optional=True),
}
OUTPUTS = {"model": Port("model", "the fine-tuned model")}


@dataclass
class SFTConfig(SupervisedStageConfig):
    kind: str = "sft"
    source: str = "data"  # data | few_shot: sample demonstrations from the policy, keep the verified ones
    few_shot_examples: int = 4  # worked problems in each prompt
    few_shot_problems: int = 512  # training problems to sample for
    few_shot_samples: int = 4  # responses a problem; of the verified ones the shortest is kept
    few_shot_suite: str = "reasoning"
    few_shot_sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def faults(self) -> list[Fault]:
        faults = super().faults()
        if self.source not in ("data", "few_shot"):
            faults.append(Fault("source", f"'{self.source}' is unknown", "write data or few_shot"))
        for key in ("few_shot_examples", "few_shot_problems", "few_shot_samples"):
            if getattr(self, key) < 1:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write at least 1"))
        sampling = self.few_shot_sampling.faults()
        return faults + [Fault(f"few_shot_sampling.{fault.key}", fault.problem, fault.remedy) for fault in sampling]


def _with_demonstrations(work: Work | None, cfg: SFTConfig, policy: dict[str, Any]) -> Work:
    """The policy answers first, with worked problems in each prompt."""
    asked = answering(cfg.few_shot_sampling, policy, cfg.few_shot_problems, cfg.few_shot_samples)
    assert work is not None
    return replace(
        work,
        held=tuple(replace(one, samples=True) for one in work.held),
        responses=asked.responses,
        prompt=(cfg.few_shot_examples + 1) * asked.prompt + cfg.few_shot_examples * asked.response,
        response=asked.response,
        rows_at_once=asked.rows_at_once,
        drawing_bytes=asked.drawing_bytes,
        sampled_tokens=asked.sampled_tokens,
    )


def outline(cfg: SFTConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    outline = supervised_outline(cfg, inputs, "policy")
    sampling = cfg.few_shot_sampling
    outline.redundant += [f"few_shot_sampling.{name}" for name in budget_fields(sampling)]
    key = "few_shot_sampling.thinking_budget"
    outline.faults += budget_faults(key, sampling.thinking_budget, sampling, inputs["policy"])
    if cfg.source == "few_shot":
        outline.work = _with_demonstrations(outline.work, cfg, inputs["policy"])
        if "problems" not in inputs:
            outline.faults.append(
                Fault("inputs.problems", "source=few_shot samples for problems", "wire problems: problems.problems")
            )
        suites = sorted(inputs.get("problems", {}).get("suites", {}))
        if suites and cfg.few_shot_suite not in suites:
            problem = f"is '{cfg.few_shot_suite}', which the problems do not have"
            outline.faults.append(Fault("few_shot_suite", problem, f"write {' or '.join(suites)}"))
        return outline
    for field_name in ("few_shot_examples", "few_shot_problems", "few_shot_samples", "few_shot_suite"):
        outline.inert[field_name] = "source=data takes the demonstrations as they are"
    if inputs.get("data", {"rows": 0}).get("rows") == 0:
        outline.faults.append(
            Fault(
                "source",
                "there are no demonstrations to learn from",
                "write stages.NAME.source=few_shot, or data with solutions",
            )
        )
    return outline
