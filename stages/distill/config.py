"""`distill`: a student learns from a teacher's verified text, and from the probabilities that the teacher gives it.

    loss = hard_weight * NLL of the text + (1 - hard_weight) * temperature^2 * divergence from the teacher

hard_weight=1 is output distillation: supervised training on text, from whatever teacher. Below it the teacher must be
at hand: as a model that reads along (port `teacher`), or by what it said when it read once (port `teacher_logits`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from stages.parts.losses.config import DIVERGENCES
from stages.parts.policy.config import SupervisedStageConfig
from stages.parts.policy.outline import (
    modes_facts,
    stored_faults,
    supervised_outline,
    teacher_faults,
    template_warnings,
    vocabulary_faults,
)
from stages.parts.policy.work import with_teacher

RECIPE_VERSION = 1
INPUTS = {
    "student": Port("model", "the model to train"),
    "data": Port("dataset:conversations", "the teacher's verified responses"),
    "general": Port("dataset:conversations", "a second source, mixed in with general_fraction", optional=True),
    "teacher": Port("model", "gives its probabilities where hard_weight is below 1", optional=True),
    "teacher_logits": Port("dataset:logits", "in the place of a teacher: its stored probabilities", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained student")}
SOFT = ("objective", "temperature", "jsd_weight")  # what hard_weight=1 does not read


@dataclass
class DistillConfig(SupervisedStageConfig):
    kind: str = "distill"
    hard_weight: float = 1.0  # of the text's NLL; the divergence has the rest. 1: text alone, no teacher is loaded
    objective: str = "forward_kl"  # forward_kl | reverse_kl | jsd: the divergence of teacher and student
    temperature: float = 1.0  # of both distributions in it; its weight grows with the square, as its gradient shrinks
    jsd_weight: float = 0.5  # jsd: the teacher's share of the mixture (GKD's beta); 0 is forward KL, 1 reverse

    @property
    def is_soft(self) -> bool:
        return self.hard_weight < 1.0

    def faults(self) -> list[Fault]:
        faults = super().faults()
        if not 0.0 <= self.hard_weight <= 1.0:
            faults.append(Fault("hard_weight", f"is {self.hard_weight}", "write a share from 0 (teacher) to 1 (text)"))
        if self.objective not in DIVERGENCES:
            faults.append(Fault("objective", f"'{self.objective}' is unknown", f"write {', '.join(DIVERGENCES)}"))
        if not (self.temperature > 0.0 and math.isfinite(self.temperature)):
            faults.append(Fault("temperature", f"is {self.temperature}", "write a positive number, 1.0"))
        if not 0.0 <= self.jsd_weight <= 1.0:
            faults.append(Fault("jsd_weight", f"is {self.jsd_weight}", "write a share between 0 and 1, 0.5"))
        return faults


def outline(cfg: DistillConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    outline = supervised_outline(cfg, inputs, "student")
    student, teacher = inputs.get("student", {}), inputs.get("teacher")
    if cfg.modes:
        student = student | modes_facts(student)  # its chat template as it is trained on
    if cfg.is_soft:
        outline.faults += probability_faults(cfg, inputs)
        if cfg.objective != "jsd":
            outline.inert["jsd_weight"] = f"objective={cfg.objective} mixes nothing"
            outline.redundant.append("jsd_weight")
    else:
        outline.inert |= dict.fromkeys(SOFT, "hard_weight=1 learns from the text alone")
        # The loss without a teacher, whatever these are: a result of before they existed is still the same.
        outline.redundant += [*SOFT, "hard_weight"]
    if cfg.is_soft and outline.work is not None:
        outline.work = with_teacher(outline.work, *([teacher] if teacher is not None else []))
    if teacher is not None:
        outline.faults += teacher_faults(student, teacher) if cfg.is_soft else vocabulary_faults(student, teacher)
        outline.warnings += template_warnings(student, teacher) if cfg.is_soft else []
    if inputs.get("data", {}).get("rows") == 0:
        outline.faults.append(
            Fault("inputs.data", "holds no conversations", "wire a dataset with rows, or leave it out: ~stages.NAME")
        )
    return outline


def probability_faults(cfg: DistillConfig, inputs: dict[str, dict[str, Any]]) -> list[Fault]:
    """A divergence needs probabilities: text has none."""
    if "teacher" in inputs and "teacher_logits" in inputs:
        problem = "is wired beside inputs.teacher, and one of them is enough"
        return [Fault("inputs.teacher_logits", problem, "leave one of them out")]
    if "teacher_logits" in inputs:
        return _stored_faults(cfg, inputs.get("student", {}), inputs["teacher_logits"])
    if "teacher" not in inputs:
        problem = f"is {cfg.hard_weight}, and the rest needs the teacher's probabilities, which text does not have"
        remedy = "wire inputs.teacher or inputs.teacher_logits, or learn from text alone (output distillation): "
        return [Fault("hard_weight", problem, remedy + "hard_weight=1")]
    context = inputs["teacher"].get("context_length")
    if context is not None and cfg.max_tokens > context:
        return [Fault("max_tokens", f"is {cfg.max_tokens}, the teacher reads {context} tokens", f"write {context}")]
    return []


def _stored_faults(cfg: DistillConfig, student: dict[str, Any], logits: dict[str, Any]) -> list[Fault]:
    faults = stored_faults(student, logits)
    known = logits.get("temperatures")
    if known is not None and cfg.temperature not in known and cfg.temperature > 0 and math.isfinite(cfg.temperature):
        problem = f"is {cfg.temperature:g}, and the stored logits are for {', '.join(f'{t:g}' for t in known)}"
        remedy = "write one of these, or add it to `temperatures` of the stage that stores them"
        faults.append(Fault("temperature", problem, remedy))
    return faults
