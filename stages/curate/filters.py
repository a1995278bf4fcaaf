"""Why a demonstration is kept or dropped: each gets one verdict, the first that fits in the order of REASONS."""

from __future__ import annotations

import re
from typing import Any

from stages.curate.config import CurateConfig
from stages.parts.data.splits import normalise
from stages.parts.data.template import split_thinking
from stages.parts.evaluation.behaviour import repetition
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.answers import last_box
from stages.parts.verifiers.reward import format_part, judge, language_part

KEPT = "kept"
REASONS = (
    "held_out",  # the query is one of the dev or test problems
    "unverifiable",  # no problem of that query, or its gold cannot be judged
    "needs_no_thinking",  # the policy's answers given at once are mostly right
    "wrong",
    "format",
    "repetition",
    "guessing",  # fewer steps than the problem has
    "mismatch",  # the answer does not come up in the thinking
    "language",
)


def verdict(
    row: dict[str, Any], problem: Problem | None, held_out: set[str], direct_share: float, cfg: CurateConfig
) -> str:
    """`kept` or one of REASONS. direct_share: of the policy's answers without thinking, those that are right."""
    query, text = row["messages"][-2]["content"], row["messages"][-1]["content"]
    if normalise(query) in held_out:
        return "held_out"
    if problem is None or (judged := judge(problem, text)).value is None:
        return "unverifiable"
    if direct_share > cfg.max_direct_share:
        return "needs_no_thinking"
    if judged.value < 1.0:
        return "wrong"
    if not format_part(text, truncated=False):
        return "format"
    return _of_thinking(problem, text, cfg)


def _of_thinking(problem: Problem, text: str, cfg: CurateConfig) -> str:
    reasoning, answer = split_thinking(text)
    assert reasoning is not None
    if repetition(reasoning) > cfg.max_repetition:
        return "repetition"
    if len(reasoning.split(",")) < problem.metadata.get("steps", 1):
        return "guessing"
    if not leads_to(reasoning, last_box(answer)[0] or answer):
        return "mismatch"
    return "language" if language_part(problem, text) < cfg.min_language else KEPT


def leads_to(reasoning: str, answer: str) -> bool:
    """Whether the numbers of the answer, or its words where it has none, come up in the thinking."""
    said, ended = reasoning.casefold(), answer.casefold()
    return all(part in said for part in re.findall(r"\d+", ended) or ended.split())
