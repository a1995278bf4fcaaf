"""`distill`: a student learns from a teacher's verified text (output distillation; logits come with a later issue)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from stages.parts.policy.config import SupervisedStageConfig
from stages.parts.policy.outline import supervised_outline

RECIPE_VERSION = 1
INPUTS = {
    "student": Port("model", "the model to train"),
    "data": Port("dataset:conversations", "the teacher's verified responses"),
    "general": Port("dataset:conversations", "a second source, mixed in with general_fraction", optional=True),
    "teacher": Port("model", "checked for the same tokenizer; read only by losses that need its logits", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained student")}


@dataclass
class DistillConfig(SupervisedStageConfig):
    kind: str = "distill"


def outline(cfg: DistillConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    outline = supervised_outline(cfg, inputs, "student")
    if "teacher" in inputs:
        outline.faults += vocabulary_faults(inputs.get("student", {}), inputs["teacher"])
    if inputs.get("data", {}).get("rows") == 0:
        outline.faults.append(Fault("inputs.data", "holds no conversations", "wire a dataset with rows"))
    return outline


def vocabulary_faults(student: dict[str, Any], teacher: dict[str, Any]) -> list[Fault]:
    """Whether the two models read the same tokens. Embedding rows may differ in number (they are padded: Qwen2.5 has
    151,936 and 152,064 for one tokenizer), so real tokens are compared, by hash."""
    for key in ("tokenizer_hash", "tokenizer"):
        if key in student and key in teacher:
            if student[key] == teacher[key]:
                return []
            problem = f"the teacher's tokenizer ({teacher[key]}) is not the student's ({student[key]})"
            return [Fault("inputs.teacher", problem, "take a student of the teacher's family, or leave the port out")]
    return []
