"""Rows of other people's data sets as ours: which column is what, and what a row is good for.

Without a mapping the usual names are tried in order. GSM8K needs none: `question`, and an `answer` that is a worked
solution ending in `#### 72`, which is both a demonstration and a problem with gold 72. A row with `messages` is a
demonstration; a row with only an answer is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.parts.verifiers.answers import last_box

GUESSES = {
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input"),
    "messages": ("messages", "conversations", "conversation"),
    "answer": ("answer", "final_answer", "expected_answer", "target", "label", "output"),
    "solution": ("solution", "generated_solution", "rationale", "reasoning", "explanation"),
    "verifier": ("verifier",),
    "metadata": ("metadata",),
}
_GSM8K_END = re.compile(r"\s*####\s*([^\n]+)\s*$")
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's annotations, <<48/2=24>>


@dataclass(frozen=True)
class Row:
    """One usable row. `messages` ends with the user; `reply` is a worked response (None: there is none)."""

    messages: list[dict[str, str]]
    answer: str | None
    reply: str | None
    verifier: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def resolve_columns(
    names: list[str], mapping: dict[str, str], known: Mapping[str, tuple[str, ...]] = GUESSES
) -> dict[str, str]:
    """ours -> theirs for the columns that are there: those mapped by name, else the first of the `known` names for it.

    Raises KeyError with the missing name where a mapped column does not exist.
    """
    resolved = {}
    for ours, guesses in known.items():
        if ours in mapping:
            if mapping[ours] not in names:
                raise KeyError(mapping[ours])
            resolved[ours] = mapping[ours]
        else:
            found = next((name for name in guesses if name in names), None)
            if found is not None:
                resolved[ours] = found
    return resolved


def read_row(raw: dict[str, Any], columns: dict[str, str], instruction: str = "") -> Row | None:
    """A row in our words; None where it has no question, or neither an answer nor a worked reply. Raises ValueError,
    as the end of a sentence about the row, where its turns are none."""
    values = {ours: raw.get(theirs) for ours, theirs in columns.items()}
    messages, reply = _conversation(values)
    answer, worked = _answer(values)
    reply = reply or worked
    if not messages or messages[-1]["role"] != "user" or (answer is None and reply is None):
        return None
    if instruction:
        messages = [*messages[:-1], {"role": "user", "content": f"{messages[-1]['content']}\n{instruction}"}]
    metadata = values.get("metadata")
    return Row(messages, answer, reply, values.get("verifier"), metadata if isinstance(metadata, dict) else {})


def _conversation(values: dict[str, Any]) -> tuple[list[dict[str, str]], str | None]:
    """The prompt as messages, and the assistant's last turn where the row has one."""
    turns = values.get("messages") or values.get("prompt")
    if isinstance(turns, str):
        return [{"role": "user", "content": turns.strip()}], None
    turns = turns or []
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("has a conversation that is no list of turns, each with role and content")
    messages = [{"role": turn.get("role"), "content": turn.get("content")} for turn in turns]
    if not all(isinstance(text, str) for message in messages for text in message.values()):
        raise ValueError("has a turn whose role or content is no text")
    if messages and messages[-1]["role"] == "assistant":
        return messages[:-1], messages[-1]["content"]
    return messages, None


def _answer(values: dict[str, Any]) -> tuple[str | None, str | None]:
    """(gold, worked reply): from the answer column, GSM8K's ending, or the box of a solution."""
    answer, solution = values.get("answer"), values.get("solution")
    gold = None if answer is None else str(answer).strip()
    if gold and (match := _GSM8K_END.search(gold)):
        solution, gold = solution or gold[: match.start()], match[1].strip()
    if not gold and solution:
        gold = last_box(str(solution))[0]
    if not gold or not solution:
        return gold or None, None
    return gold, worked_reply(str(solution), gold)


def worked_reply(solution: str, gold: str) -> str:
    """A solution as the response it should teach: reasoning in a think block, then the boxed answer."""
    reasoning = _CALCULATOR.sub("", _GSM8K_END.sub("", solution)).strip()
    return f"<think>{reasoning}</think>\\boxed{{{gold}}}"
