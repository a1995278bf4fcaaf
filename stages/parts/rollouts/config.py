"""How responses are sampled, as configuration. Importable without torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault
from stages.parts.data.template import THINK_CLOSE, THINK_OPEN
from stages.parts.data.tokenizer import tokenizer_facts

MAX_ROWS = 512  # that are decoded side by side (engine.py)
RESPONSES_PER_CALL = 2048  # between two looks at a stop request; fewer leave more half-empty batches behind
SHORT_ANSWER = 16  # tokens

# Qwen3's (arXiv:2505.09388, section 4.3); what the engine writes when a thinking budget is used up.
STOP_TEXT = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    "</think>\n\n"
)
# Tokens around turns, as the embedded tokenizer, Qwen, Llama, Mistral and Gemma write them
_SPECIAL = re.compile(r"<\|\w+\|>|</?s>|\[/?INST\]|<(?:eos|bos|start_of_turn|end_of_turn)>")


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
    return faults


def budget_faults(key: str, budget: int | None, cfg: Any, model: dict[str, Any]) -> list[Fault]:
    """Whether a thinking budget leaves room for its stop text and an answer. `cfg` has `max_response_tokens` and
    `stop_text`, `model` are the facts of the model that samples."""
    if budget is None:
        return []
    if budget < 0:
        return [Fault(key, f"is {budget}", "write 0 (no thinking at all) or more tokens, null for no budget")]
    if fault := stop_text_fault(key, cfg.stop_text):
        return [fault]
    return room_faults(key, budget, cfg.max_response_tokens, stop_tokens(cfg.stop_text, model))


def stop_text_fault(budget_key: str, text: str) -> Fault | None:
    """What closes the block closes it once, opens no other and does not end the turn."""
    place, dot, _ = budget_key.rpartition(".")
    key, remedy = f"{place}{dot}stop_text", f"write a sentence; {THINK_CLOSE} is put behind it where it has none"
    if text.count(THINK_CLOSE) > 1:
        return Fault(key, f"closes the think block {text.count(THINK_CLOSE)} times", remedy)
    if THINK_OPEN in text:
        return Fault(key, "opens a think block", remedy)
    if found := _SPECIAL.search(text):
        return Fault(key, f"has '{found[0]}' in it, which ends the turn or begins another", remedy)
    return None


def room_faults(key: str, budget: int, limit: int, stop: int) -> list[Fault]:
    """A response of `limit` tokens has to hold an opening tag, `budget` tokens of thinking, `stop` tokens that close it
    and an answer of one token at the very least; the remedies leave it SHORT_ANSWER."""
    room = limit - 1 - stop
    if budget < room:
        return []
    problem = f"is {budget}: with the stop text ({stop} tokens) it leaves no room for an answer in {limit} tokens"
    less = f"write less, {room - SHORT_ANSWER}, or " if room >= SHORT_ANSWER else "write "
    return [Fault(key, problem, f"{less}max_response_tokens={limit + budget - room + SHORT_ANSWER}")]


def stop_tokens(stop_text: str, model: dict[str, Any]) -> int:
    """Tokens that a stop text and the tag in it or behind it take: of the embedded tokenizer all, of others, which a
    plan does not open, the least that there can be."""
    parts = stop_text.split(THINK_CLOSE)
    embedded = model.get("tokenizer_hash") == tokenizer_facts()["tokenizer_hash"]
    return 1 + sum(len(part.encode()) if embedded else bool(part) for part in parts)


def budget_fields(cfg: Any) -> list[str]:
    """Fields that came later and cannot change one bit where there is no budget: not in the fingerprint then."""
    return ["thinking_budget", "stop_text"] if cfg.thinking_budget is None else []
