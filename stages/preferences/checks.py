"""Rows of somebody's preference data as pairs, and what can be wrong with a file of them. No torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Fault
from stages.parts.data.checks import FIRST_LINES, first_rows
from stages.parts.data.columns import resolve_columns
from stages.parts.data.pairs import Pair
from stages.parts.data.splits import normalise

if TYPE_CHECKING:
    from stages.preferences.config import PreferencesConfig

GUESSES = {
    "prompt": ("prompt", "question", "instruction", "query", "input"),
    "chosen": ("chosen", "preferred", "response_chosen", "better"),
    "rejected": ("rejected", "dispreferred", "response_rejected", "worse"),
    "axis": ("axis", "aspect", "criterion"),
}
NEEDED = ("chosen", "rejected")  # a prompt may stand in conversations instead (UltraFeedback, HH-RLHF)


def read_pair(raw: dict[str, Any], columns: dict[str, str], axis: str) -> Pair | None:
    """A row as a pair; None where it has no prompt, or where both responses are the same or one is empty."""
    values = {ours: raw.get(theirs) for ours, theirs in columns.items()}
    sides = [_conversation(values.get(side)) for side in ("chosen", "rejected")]
    responses = [turns[-1]["content"] if turns and turns[-1]["role"] == "assistant" else "" for turns in sides]
    prompt = values.get("prompt")
    messages = _conversation(prompt, "user") if prompt else (sides[0] or [])[:-1]
    if not messages or messages[-1]["role"] != "user" or not all(responses) or responses[0] == responses[1]:
        return None
    question = normalise(messages[-1]["content"])
    name = hashlib.sha256(question.encode("utf-8")).hexdigest()[:12]
    return Pair(f"prompt-{name}", messages, responses[0], responses[1], str(values.get("axis") or axis))


def _conversation(value: Any, role: str = "assistant") -> list[dict[str, str]] | None:
    """A text as one turn, or turns as they are."""
    if isinstance(value, str):
        return [{"role": role, "content": value.strip()}]
    return [{"role": turn["role"], "content": turn["content"]} for turn in value] if value else None


def file_faults(cfg: PreferencesConfig) -> list[Fault]:
    """Whether the file opens, has the columns, and its first rows are pairs."""
    if not cfg.path:
        return [Fault("path", "is missing", "write stages.NAME.path=FILE (.jsonl or .parquet)")]
    unknown = sorted(set(cfg.columns) - set(GUESSES))
    if unknown:
        return [Fault("columns", f"maps {', '.join(unknown)}", f"ours are {', '.join(GUESSES)}")]
    try:
        rows = list(first_rows(Path(cfg.path)).values())
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [Fault("path", f"'{cfg.path}' cannot be read: {reason}", "name a readable .jsonl or .parquet file")]
    names = sorted({name for row in rows for name in row})
    has = f"the file has {', '.join(names) or 'no rows'}"
    try:
        columns = resolve_columns(names, cfg.columns, GUESSES)
    except KeyError as error:
        return [Fault("columns", f"there is no column {error} in '{cfg.path}'", has)]
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        remedy = f"map ours to theirs, stages.NAME.columns.{missing[0]}=COLUMN: {has}"
        return [Fault("columns", f"'{cfg.path}' has no column that is known as {' or '.join(missing)}", remedy)]
    try:
        pairs = [pair for row in rows if (pair := read_pair(row, columns, cfg.axis)) is not None]
    except (KeyError, TypeError, AttributeError) as error:
        return [Fault("columns", f"a row of '{cfg.path}' is not as its columns say ({error!r})", has)]
    prompts = len({pair.problem_id for pair in pairs})
    if not pairs or (len(rows) < FIRST_LINES and prompts < 3):  # that was the whole file
        problem = f"'{cfg.path}' holds {prompts} distinct prompts with two different responses"
        return [Fault("path", problem, "three splits need at least three")]
    return []
