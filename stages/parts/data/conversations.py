"""`dataset:conversations` on disk: rows {"messages": [{role, content}], "problem_id", "suite"}, one a line.

A row with "loss": "last" is learned from its last turn alone: templates strip the thinking of earlier ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save_conversations(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write `train.jsonl` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def load_conversations(folder: Path) -> list[dict[str, Any]]:
    """All rows in file order."""
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]
