"""`math`: is the answer equal to the gold as mathematics? Rules first, algebra last.

Most golds of RL are plain numbers, words or letters: those are decided here in microseconds and exactly. What is left
(surds, intervals, sets, polynomials) goes to math-verify in a process that can be killed, with its lenient sides
guarded: a rounded decimal is not an exact answer, and 50 is not 50%.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stages.parts.rollouts.types import Problem, Score
from stages.parts.verifiers.math_process import ask_math_verify
from stages.parts.verifiers.rationals import rational, tidy

LONGEST_ANSWER = 300  # characters; a longer one is beyond the limits, so wrong

_INTEGER = re.compile(r"-?\d{1,15}")
_WORD = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit)\s*{([^{}]*)}")
_RATIO = re.compile(r"(\d+(?:\s*:\s*\d+)+)")
_DECIMAL = re.compile(r"\d+\.\d+|\.\d+")
_CONSTANTS = {"pi", "e", "i"}


def verify_math(problem: Problem, answer: str) -> Score:
    """Score 1 or 0; None where the gold is neither mathematics nor a plain word or letter."""
    right = equal(problem.answer, answer)
    if right is None:
        return Score(None, reason="gold cannot be judged")
    return Score(float(right), reason="right" if right else "wrong")


def equal(gold: str, answer: str) -> bool | None:
    """Whether `answer` equals `gold`; None: the gold cannot be judged, whatever the answer is."""
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        return int(gold) == int(answer)
    kind = _kind(gold)
    if kind == "unknown":
        return None
    if len(answer) > LONGEST_ANSWER or not answer.strip():
        return False
    if kind == "word":
        return _as_word(answer) == _as_word(gold)
    if kind == "ratio":
        return _as_ratio(answer) == _as_ratio(gold)
    value = rational(answer)
    if kind == "number":
        if value is not None:
            return value == rational(gold)
        if _as_word(answer) is not None or _as_ratio(answer) is not None:
            return False
    elif value is not None and _DECIMAL.search(answer) and not _DECIMAL.search(gold):
        return False  # a rounded value of an exact answer
    return bool(ask_math_verify(tidy(gold), tidy(answer)))


@lru_cache(maxsize=65536)
def _kind(gold: str) -> str:
    """number | ratio | word | expression | unknown. A gold that only looks odd is read by math-verify once."""
    if rational(gold) is not None:
        return "number"
    if _as_ratio(gold) is not None:
        return "ratio"
    if _as_word(gold) is not None:
        return "word"
    return "expression" if _looks_like_math(gold) and ask_math_verify(tidy(gold), None) else "unknown"


def _looks_like_math(gold: str) -> bool:
    """math-verify reads whatever it can find in a text; a gold with question marks or several plain words is none."""
    bare = re.sub(r"\\[A-Za-z]+", " ", gold)
    return not re.search(r"[?!@#]", bare) and not re.search(r"[A-Za-z]{3,}\s+[A-Za-z]{3,}", bare)


def _as_word(text: str) -> str | None:
    """A plain word, letter or short phrase, case and brackets aside; None: something else."""
    bare = _TEXT.sub(r"\1", text).strip().strip("$").strip().rstrip(".").strip()
    if len(bare) > 2 and bare[0] == "(" and bare[-1] == ")":
        bare = bare[1:-1].strip()
    return bare.casefold() if _WORD.fullmatch(bare) and bare not in _CONSTANTS else None


def _as_ratio(text: str) -> tuple[float, ...] | None:
    """a:b:c scaled by its first part; None: not a ratio."""
    match = _RATIO.fullmatch(tidy(text))
    if match is None:
        return None
    parts = [int(part) for part in match[1].split(":")]
    return tuple(part / parts[0] for part in parts) if parts[0] else tuple(parts)
