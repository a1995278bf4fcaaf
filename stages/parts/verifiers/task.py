"""`task`: reasoning-gym's own scorer of the family that the problem came from.

Its partial credit (0.2 for a longer text that contains the gold, a share for letters in place) would teach guessing:
an answer is right where the scorer gives full marks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from stages.parts.rollouts.types import Problem, Score


def verify_task(problem: Problem, answer: str) -> Score:
    """Score 1 or 0, from metadata {"task": name in reasoning-gym, "entry": its entry}."""
    entry = problem.metadata["entry"]
    right = answer.strip() == entry["answer"] or _scorer(problem.metadata["task"])(answer.strip(), entry) >= 1.0
    return Score(float(right), reason="right" if right else "wrong")


@cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    import reasoning_gym

    return reasoning_gym.get_score_answer_fn(task)
