"""`exposure_bias`: how far a student is from its teacher after its own words, and how far after the teacher's.

A student that was only ever shown a teacher's text has learnt what to say after prefixes that it does not write. Both
models answer held-out problems here (nothing is trained), and at every token of both texts the two next-token
distributions are compared. The gap is the exposure bias: what the student's own mistakes add to its distance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig, not_in_fingerprint
from stages.parts.policy.outline import teacher_faults, template_warnings
from stages.parts.policy.work import comparing
from stages.parts.rollouts.config import sampling_faults

RECIPE_VERSION = 1
INPUTS = {
    "student": Port("model", "the model that is measured"),
    "teacher": Port("model", "the model that it learned from"),
    "problems": Port("dataset:problems", "the held-out problems that both answer"),
}
OUTPUTS = {"measured": Port("metrics", "both distances, problem by problem")}


@dataclass
class ExposureBiasConfig(StageConfig):
    kind: str = "exposure_bias"
    split: str = "test"  # test | dev
    suites: list[str] = field(default_factory=lambda: ["reasoning"])
    max_problems: int = 200  # of all suites together
    samples: int = 2  # responses a problem, of either model
    temperature: float = 1.0  # of sampling, and of the distributions that are compared
    top_p: float = 1.0
    max_response_tokens: int = 128
    dtype: str = "auto"  # of the forward pass: auto (bf16 where the device has it) | float32 | bfloat16
    tokens_per_microbatch: int = not_in_fingerprint(16384)  # padded tokens of one forward pass: memory, not result

    def faults(self) -> list[Fault]:
        faults = [*super().faults(), *sampling_faults(self)]
        if self.split not in ("test", "dev"):
            faults.append(Fault("split", f"'{self.split}' is unknown", "write test or dev"))
        if not self.suites:
            faults.append(Fault("suites", "is empty", "name suites of the problem set"))
        if self.temperature == 0:
            problem = "is 0: the distributions that are compared have none"
            faults.append(Fault("temperature", problem, "write a positive number, 1.0"))
        if self.dtype not in ("auto", "float32", "bfloat16"):
            faults.append(Fault("dtype", f"'{self.dtype}' is unknown", "write auto, float32 or bfloat16"))
        return faults


def outline(cfg: ExposureBiasConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    student, teacher = inputs["student"], inputs["teacher"]
    plan = Outline(
        outputs={"measured": {"split": cfg.split}},
        faults=teacher_faults(student, teacher),
        warnings=template_warnings(student, teacher),
        parameters=student.get("parameters"),
    )
    known: dict[str, dict[str, int]] | None = inputs["problems"].get("suites")
    if known is None:
        return plan
    sizes = {suite: known.get(suite, {}).get(cfg.split, 0) for suite in cfg.suites}
    for suite, size in sizes.items():
        if size == 0:
            problem = f"there are no {cfg.split} problems of {suite}"
            plan.faults.append(Fault("suites", problem, f"write suites of the problem set: {', '.join(sorted(known))}"))
    problems = min(sum(sizes.values()), cfg.max_problems)
    plan.work = comparing(cfg, student, teacher, problems)
    plan.tokens = 2 * problems * cfg.samples * cfg.max_response_tokens
    return plan
