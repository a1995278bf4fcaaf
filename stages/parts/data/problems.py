"""`dataset:problems` on disk: a JSON-lines file a split, one problem a line.

`metadata` is a JSON *string* in the file, so that rows of different families have one schema and
`datasets.load_dataset(folder)` reads them as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from stages.parts.rollouts.types import Problem

SPLITS = ("train", "dev", "test")


def save_problems(folder: Path, splits: dict[str, list[Problem]]) -> None:
    """Write `{split}.jsonl` into `folder`, one line a problem."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, problems in splits.items():
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for problem in problems:
                row = dataclasses.asdict(problem) | {"metadata": json.dumps(problem.metadata, sort_keys=True)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def load_problems(folder: Path, split: str, suites: Iterable[str] | None = None) -> list[Problem]:
    """The problems of one split in file order, of `suites` only where given."""
    wanted = None if suites is None else set(suites)
    problems = []
    for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        row = json.loads(line)
        if wanted is None or row["suite"] in wanted:
            problems.append(Problem(**{**row, "metadata": json.loads(row["metadata"])}))
    return problems
