"""`teacher_logits`: a teacher reads conversations once, and its likeliest next tokens are stored for any student.

Kept at every supervised position: the top_k likeliest tokens, their log-probs, and the mass of all others together at
each of `temperatures` (what the others weigh at a temperature cannot be told from what they weigh at another).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig, not_in_fingerprint
from stages.parts.policy.work import reading

RECIPE_VERSION = 1
INPUTS = {
    "teacher": Port("model", "the model that reads; it never generates"),
    "data": Port("dataset:conversations", "what it reads"),
    "general": Port("dataset:conversations", "a second source that students will mix in", optional=True),
}
OUTPUTS = {"logits": Port("dataset:logits", "the teacher's likeliest next tokens, and the mass of the rest")}
BYTES = 4  # of a token id, and of a log-prob


@dataclass
class TeacherLogitsConfig(StageConfig):
    kind: str = "teacher_logits"
    top_k: int = 32  # tokens kept a position; one fewer than the vocabulary at most, with which nothing is lost
    temperatures: list[float] = field(default_factory=lambda: [1.0, 2.0, 4.0])  # that students may distil at
    max_tokens: int = 512  # of one conversation; as the students have it
    over_length: str = "drop"  # drop | split | error; as the students have it
    dtype: str = "auto"  # of the forward pass: auto (bf16 where the device has it) | float32 | bfloat16
    tokens_per_microbatch: int = not_in_fingerprint(16384)  # padded tokens of one forward pass: memory, not result

    def faults(self) -> list[Fault]:
        faults = super().faults()
        for key in ("top_k", "tokens_per_microbatch"):
            if getattr(self, key) < 1:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write a positive number"))
        if self.max_tokens < 2:
            faults.append(Fault("max_tokens", f"is {self.max_tokens}", "write at least 2, 512"))
        if not self.temperatures or any(not (t > 0 and math.isfinite(t)) for t in self.temperatures):
            faults.append(Fault("temperatures", f"is {self.temperatures}", "write positive numbers, [1.0, 2.0]"))
        if self.over_length not in ("drop", "split", "error"):
            faults.append(Fault("over_length", f"'{self.over_length}' is unknown", "write drop, split or error"))
        if self.dtype not in ("auto", "float32", "bfloat16"):
            faults.append(Fault("dtype", f"'{self.dtype}' is unknown", "write auto, float32 or bfloat16"))
        return faults


def outline(cfg: TeacherLogitsConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    teacher = inputs["teacher"]
    known = ("tokenizer_hash", "tokenizer", "template_hash")
    facts: dict[str, Any] = {name: teacher[name] for name in known if name in teacher}
    facts |= {"top_k": cfg.top_k, "temperatures": list(cfg.temperatures)}
    rows = [inputs[port].get("rows", math.nan) for port in ("data", "general") if port in inputs]
    plan = Outline(outputs={"logits": facts}, parameters=teacher.get("parameters"))
    if not math.isnan(sum(rows)):
        facts["rows"] = sum(rows)
        plan.tokens = sum(rows) * cfg.max_tokens
        stored = (2 * cfg.top_k + len(cfg.temperatures)) * BYTES
        plan.work = reading(cfg, teacher, sum(rows), cfg.max_tokens, output_bytes=plan.tokens * stored)
    if inputs["data"].get("rows") == 0:
        plan.faults.append(Fault("inputs.data", "holds no conversations", "wire a dataset with rows"))
    vocabulary = teacher.get("vocab_size")
    if vocabulary is not None and cfg.top_k >= vocabulary:
        remedy = f"write at most {vocabulary - 1}, with which nothing is lost"
        plan.faults.append(Fault("top_k", f"is {cfg.top_k}, the vocabulary has {vocabulary} tokens", remedy))
    context = teacher.get("context_length")
    if context is not None and cfg.max_tokens > context:
        problem = f"is {cfg.max_tokens}, but the model reads {context} tokens"
        plan.faults.append(Fault("max_tokens", problem, f"write at most {context}"))
    return plan
