"""What a response does, seen in its text alone: does it reason, does it look back, does it repeat itself?

Rules of thumb for curves, never a reward. DeepSeek-R1 (arXiv:2501.12948, figure 3 and section 2.3) counts words like
"wait" the same way.
"""

from __future__ import annotations

import re
from collections import Counter

from stages.parts.data.template import split_thinking

REFLECTION = re.compile(
    r"\b(wait|hmm|let me (check|re-?check|verify|think again|re-?consider|try again)|(double|re)-?check(ing)?|"
    r"on second thought|i made a mistake|that( i|')s (wrong|not right)|espera|reviso)\b|\bcheck:",
    re.IGNORECASE,
)
_EQUATION = re.compile(r"\d\s*[-+*/%×÷]\s*\d[^=\n]{0,40}=\s*-?\d")
_STEP_WORDS = re.compile(r"\b(first|then|next|step|so|because|therefore|work)\b", re.IGNORECASE)
FEW_WORDS = 12  # text of an answer given at once ("The answer is ...") stays below


def measure_behaviour(text: str) -> dict[str, float]:
    """`reasoned` and `reflection`, each 0 or 1, of one response."""
    return {"reasoned": float(is_reasoned(text)), "reflection": float(is_reflecting(text))}


def is_reasoned(text: str) -> bool:
    """A think block that is not empty, or steps written out before the last box."""
    reasoning, _ = split_thinking(text)
    if reasoning is not None:
        return bool(reasoning)
    before = _before_answer(text)
    return bool(_EQUATION.search(before) or _STEP_WORDS.search(before) or len(before.split()) >= FEW_WORDS)


def is_reflecting(text: str) -> bool:
    """Words of looking back, in the reasoning or before the answer."""
    reasoning, _ = split_thinking(text)
    return bool(REFLECTION.search(_before_answer(text) if reasoning is None else reasoning))


def repetition(text: str) -> float:
    """Share of 4-grams of words that occurred before in the text; 0 for fewer than five words."""
    words = text.split()
    grams = Counter(tuple(words[start : start + 4]) for start in range(len(words) - 3))
    return 1.0 - len(grams) / grams.total() if grams.total() > 1 else 0.0


def longest_paragraph(text: str) -> int:
    """Characters of the longest paragraph (between blank lines)."""
    return max(len(paragraph.strip()) for paragraph in re.split(r"\n\s*\n", text))


def _before_answer(text: str) -> str:
    at = text.rfind("\\boxed")
    return text if at == -1 else text[:at]
