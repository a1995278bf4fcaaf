"""How responses are sampled, as configuration. Importable without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault

MAX_ROWS = 512  # that are decoded side by side (engine.py)
RESPONSES_PER_CALL = 2048  # between two looks at a stop request; fewer leave more half-empty batches behind

# Qwen3's (arXiv:2505.09388, section 4.3); what the engine writes when a thinking budget is used up.
STOP_TEXT = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    "</think>\n\n"
)


@dataclass
class SamplingConfig:
    """Sampling distribution and limits of one generation call."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_response_tokens: int = 128
    thinking_budget: int | None = None  # tokens of the think block, at most; None: as many as there is room for
    stop_text: str = STOP_TEXT  # written by the engine where the budget is used up, never trained on

    def faults(self) -> list[Fault]:
        return sampling_faults(self)


def sampling_of(cfg: Any) -> SamplingConfig:
    """How a stage samples: its own fields of these names."""
    names = ("temperature", "top_p", "top_k", "max_response_tokens", "thinking_budget", "stop_text")
    return SamplingConfig(**{name: getattr(cfg, name) for name in names})


def sampling_faults(cfg: Any) -> list[Fault]:
    """Range checks of whatever config has these fields (and `samples`, `top_k` where it has them)."""
    faults = []
    if not (cfg.temperature >= 0 and math.isfinite(cfg.temperature)):
        faults.append(Fault("temperature", f"is {cfg.temperature}", "write 0 (greedy) or more, 1.0"))
    if not 0 < cfg.top_p <= 1:
        faults.append(Fault("top_p", f"is {cfg.top_p}", "write a share in (0, 1]; 1 keeps every token"))
    for name, least in (("max_response_tokens", 1), ("samples", 1), ("max_problems", 1), ("top_k", 0)):
        if getattr(cfg, name, least) < least:
            faults.append(Fault(name, f"is {getattr(cfg, name)}", f"write at least {least}"))
    return faults + budget_faults("thinking_budget", getattr(cfg, "thinking_budget", None), cfg.max_response_tokens)


def budget_faults(key: str, budget: int | None, max_response_tokens: int) -> list[Fault]:
    """Whether a thinking budget fits into a response. The stop text and an answer need room too: how much only the
    tokenizer knows, so that is checked when it is loaded."""
    if budget is None:
        return []
    if budget < 0:
        return [Fault(key, f"is {budget}", "write 0 (no thinking at all) or more tokens, null for no budget")]
    if budget >= max_response_tokens:
        problem = f"is {budget}, a response has {max_response_tokens} tokens with its answer"
        remedy = f"write less, {max_response_tokens // 2}, or more max_response_tokens"
        return [Fault(key, problem, remedy)]
    return []


def budget_fields(cfg: Any) -> list[str]:
    """Fields that came later and cannot change one bit where there is no budget: not in the fingerprint then."""
    return ["thinking_budget", "stop_text"] if cfg.thinking_budget is None else []
