"""`curate`: a few good demonstrations for a cold start, by query and response filters (Qwen3, arXiv:2505.09388, 4.1).

Queries go that cannot be verified, that stand among the held-out ones, or that a model solves without thinking (they
would teach thinking where none is needed). Responses go that are wrong, badly formed, repetitive, in a mixed language,
that guess (fewer steps than the problem has), or whose thinking does not lead to their answer. The paper wants few of
them: they are to instil a pattern, not to raise a score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.policy.work import answering

RECIPE_VERSION = 1
INPUTS = {
    "data": Port("dataset:conversations", "demonstrations to choose from"),
    "problems": Port("dataset:problems", "their gold answers, and the held-out problems"),
    "policy": Port("model", "answers without thinking; not wired: nobody is asked", optional=True),
}
OUTPUTS = {
    "kept": Port("dataset:conversations", "what passed every filter"),
    "ledger": Port("metrics", "read, kept, and dropped by reason"),
}


@dataclass
class CurateConfig(StageConfig):
    kind: str = "curate"
    evaluate: bool = False
    direct_samples: int = 4  # answers without thinking that `policy` gives to each query
    max_direct_share: float = 0.5  # drop a query where more of them are right
    min_language: float = 0.9  # drop thinking with a smaller share of words in the prompt's language
    max_repetition: float = 0.5  # drop thinking with a larger share of repeated 4-grams of words
    temperature: float = 1.0  # of the answers without thinking
    max_response_tokens: int = 64  # of one of them

    def faults(self) -> list[Fault]:
        faults = super().faults()
        for name in ("direct_samples", "max_response_tokens"):
            if getattr(self, name) < 1:
                faults.append(Fault(name, f"is {getattr(self, name)}", "write at least 1"))
        for name in ("max_direct_share", "min_language", "max_repetition"):
            if not 0 <= getattr(self, name) <= 1:
                faults.append(Fault(name, f"is {getattr(self, name)}", "write a share in [0, 1]"))
        if self.temperature < 0:
            faults.append(Fault("temperature", f"is {self.temperature}", "write 0 (greedy) or more"))
        return faults


def outline(cfg: CurateConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    rows = inputs["data"].get("rows")
    plan = Outline(parameters=inputs.get("policy", {}).get("parameters"))
    if rows == 0:
        problem = "holds no conversations"
        plan.faults.append(Fault("inputs.data", problem, "wire demonstrations, or data with worked solutions"))
    if rows is not None:
        plan.outputs = {"kept": {"rows": rows}, "ledger": {"rows": rows}}
        if "policy" in inputs:
            plan.tokens = rows * cfg.direct_samples * cfg.max_response_tokens
            plan.work = answering(cfg, inputs["policy"], rows, cfg.direct_samples)
    if "policy" not in inputs:
        reason = "no policy is wired that could answer without thinking"
        plan.inert = dict.fromkeys(("direct_samples", "max_direct_share", "temperature", "max_response_tokens"), reason)
    return plan
