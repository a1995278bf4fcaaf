"""`exact`: the answer is the gold, letter by letter, blank space and list commas aside."""

from __future__ import annotations

from stages.parts.rollouts.types import Problem, Score


def verify_exact(problem: Problem, answer: str) -> Score:
    """Score 1 or 0."""
    right = _plain(answer) == _plain(problem.answer)
    return Score(float(right), reason="right" if right else "wrong")


def _plain(text: str) -> list[str]:
    return text.replace(",", " ").split()
