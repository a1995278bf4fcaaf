"""`remark`: an open-ended reply is on topic, clear and in format. Reads the whole answer after the thinking.

Rewards of such problems come from a learned model; this is the rule that the model is watched by.
"""

from __future__ import annotations

from stages.parts.data.remarks import judge_remark
from stages.parts.rollouts.types import Problem, Score


def verify_remark(problem: Problem, answer: str) -> Score:
    """Score 1 or 0, from metadata {"rule": {"subjects", "form"}}."""
    verdicts = judge_remark(problem.metadata["rule"], answer)
    failed = [name for name, holds in verdicts.items() if not holds]
    return Score(float(not failed), reason=f"not in {', '.join(failed)}" if failed else "right")
