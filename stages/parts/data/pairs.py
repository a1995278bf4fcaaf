"""`dataset:preferences` on disk: a JSON-lines file a split, one pair a line.

A row: the prompt as messages, a chosen and a rejected response (whole ones, thinking included), the axis that the
choice is about, and why. What a reward model reads depends on the axis, as with DeepSeek-R1 (arXiv:2501.12948):
harmlessness is judged on the whole response, helpfulness (and whatever else people name) on the answer after the
thinking, so that reasoning is left to the rules.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.parts.data.problems import SPLITS
from stages.parts.data.template import split_thinking

HELPFULNESS, HARMLESSNESS = "helpfulness", "harmlessness"


@dataclass(frozen=True)
class Pair:
    """Of two responses to one prompt, the better and the worse one."""

    problem_id: str  # equal prompts have equal ids: the unit of resampling
    messages: list[dict[str, str]]  # the prompt, last turn from the user
    chosen: str
    rejected: str
    axis: str = HELPFULNESS
    reason: str = ""  # what is wrong with the rejected one, where it is known


def judged_part(axis: str, response: str) -> str:
    """What of a response is judged."""
    return response if axis == HARMLESSNESS else split_thinking(response)[1]


def judged_conversation(messages: list[dict[str, str]], axis: str, response: str) -> list[dict[str, str]]:
    """The conversation that a reward model reads."""
    return [*messages, {"role": "assistant", "content": judged_part(axis, response)}]


def save_pairs(folder: Path, splits: dict[str, list[Pair]]) -> None:
    """Write `{split}.jsonl` into `folder`; the prompt's messages go under `prompt`."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        rows = [_row(pair) for pair in pairs]
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )


def load_pairs(folder: Path, split: str) -> list[Pair]:
    """The pairs of one split in file order; none where the folder has no such file."""
    path = folder / f"{split}.jsonl"
    if split not in SPLITS or not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [Pair(messages=row.pop("prompt"), **row) for row in rows]


def _row(pair: Pair) -> dict[str, Any]:
    row = dataclasses.asdict(pair)
    return {"problem_id": row.pop("problem_id"), "prompt": row.pop("messages"), **row}
