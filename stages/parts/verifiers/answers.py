"""Where a response's answer stands: boxes first, and only then what people use instead of one.

Differs from a regular expression `\\boxed{([^}]+)}` in the ways that are known to hurt: braces nest, the *last* closed
box counts (not the set of all), a box that was opened and never closed forbids any fallback, and what is said inside
thinking is not an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.parts.data.template import split_thinking

_BOX = re.compile(r"\\(?:boxed|fbox)\s*{")
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_GSM8K_MARK = re.compile(r"####\s*([^\n]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?%?")


@dataclass(frozen=True)
class Extracted:
    """The answer of a response, or why there is none."""

    answer: str | None
    reason: str = ""


def extract_answer(text: str, require_box: bool = True, truncated: bool = False) -> Extracted:
    """The answer in `text`. Without a box, and where allowed: `<answer>` tags, then `####`, then the last number.

    A truncated response gets no fallback: its last number may be the first half of one.
    """
    reasoning, rest = split_thinking(text)
    if reasoning is not None and not rest:
        return Extracted(None, "thinking never ended" if "</think>" not in text else "no answer after thinking")
    box, unclosed = last_box(rest)
    if box is not None:
        return Extracted(box.strip())
    if unclosed:
        return Extracted(None, "box never closed")
    if require_box or truncated:
        return Extracted(None, "no box")
    return _fallback(rest)


def last_box(text: str) -> tuple[str | None, bool]:
    """Content of the last closed `\\boxed{}` (None: there is none), and whether some box was never closed."""
    content, unclosed = None, False
    for match in _BOX.finditer(text):
        end = _closing_brace(text, match.end())
        if end is None:
            unclosed = True
        else:
            content = text[match.end() : end]
    return content, unclosed


def _closing_brace(text: str, start: int) -> int | None:
    depth, position = 1, start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2  # an escaped brace is a printed one
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return position
        position += 1
    return None


def _fallback(text: str) -> Extracted:
    tags = _ANSWER_TAG.findall(text)
    if tags:
        return Extracted(tags[-1].strip())
    marks = _GSM8K_MARK.findall(text)
    if marks:
        return Extracted(marks[-1].strip())
    numbers = _NUMBER.findall(text)
    if numbers:
        return Extracted(numbers[-1].rstrip(","))
    return Extracted(None, "no answer")
