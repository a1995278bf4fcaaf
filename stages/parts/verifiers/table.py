"""The verifiers by name: (problem, extracted answer) -> Score of 1 or 0, or None where the gold cannot be judged."""

from __future__ import annotations

from collections.abc import Callable

from stages.parts.rollouts.types import Problem, Score
from stages.parts.verifiers.chrf import verify_chrf
from stages.parts.verifiers.exact import verify_exact
from stages.parts.verifiers.math_answers import verify_math
from stages.parts.verifiers.refusal import verify_refusal
from stages.parts.verifiers.remark import verify_remark
from stages.parts.verifiers.task import verify_task

VERIFIERS: dict[str, Callable[[Problem, str], Score]] = {
    "math": verify_math,
    "exact": verify_exact,
    "task": verify_task,
    "refusal": verify_refusal,
    "remark": verify_remark,
    "chrf": verify_chrf,
}
# These read the whole answer after the thinking, and need no box.
WHOLE_ANSWER = frozenset({"refusal", "remark", "chrf"})
