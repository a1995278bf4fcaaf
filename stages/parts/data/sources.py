"""Problems and demonstrations of one suite, from whatever source it names.

Embedded families are drawn one by one, so their split is decided problem by problem (`splits.split_of`) until each
split is full. A file has the rows it has: its distinct questions are put in the order of their hashes and cut.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import StageFailed
from stages.parts.data import solutions
from stages.parts.data.checks import first_rows, suite_families, usable_rows
from stages.parts.data.columns import Row, resolve_columns
from stages.parts.data.config import EMBEDDED, DataConfig
from stages.parts.data.families import EVERY_FAMILY
from stages.parts.data.problems import SPLITS
from stages.parts.data.splits import normalise, split_of
from stages.parts.data.tasks import Exercise, draw, stable_fraction, stable_int
from stages.parts.rollouts.types import Problem

FRUITLESS_DRAWS = 500  # a family is exhausted after as many draws without a new problem
CAREFUL_SHARE = 0.5  # of the demonstrations: the rest skip steps, as people do


@dataclass
class Suite:
    """The problems of one suite by split, its demonstrations, and what people should know about them."""

    splits: dict[str, list[Problem]]
    demonstrations: list[dict[str, Any]]  # rows of a dataset:conversations
    notes: list[str] = field(default_factory=list)


def build_suite(name: str, cfg: DataConfig, between: Callable[[], None] = lambda: None) -> Suite:
    """All of a suite, a pure function of its configuration (and of the file or the pinned revision). `between` is
    called between two draws of an embedded one, and may raise: there may be minutes of them."""
    if cfg.source in EMBEDDED:
        return _embedded(name, cfg, between)
    return _from_rows(name, cfg, read_rows(cfg))


def sizes(cfg: DataConfig) -> dict[str, int]:
    return {"train": cfg.train_problems, "dev": cfg.dev_problems, "test": cfg.test_problems}


# Embedded families


class _Supply:
    """The problems of one family, sorted into splits as they are drawn, no problem twice."""

    def __init__(self, family: str, cfg: DataConfig, between: Callable[[], None]) -> None:
        self.between = between
        self.draws: Iterator[Exercise] = draw(family, cfg.difficulty, f"problems/{cfg.seed}")
        self.seed = cfg.seed
        self.seen: set[str] = set()
        self.ready: dict[str, list[Exercise]] = {split: [] for split in SPLITS}

    def take(self, split: str) -> Exercise | None:
        """The next problem of a split; None: the family has no more of them."""
        fruitless = 0
        while not self.ready[split]:
            self.between()
            exercise = next(self.draws, None)
            if exercise is None:
                return None
            fruitless += 1
            if exercise.key not in self.seen:
                self.seen.add(exercise.key)
                self.ready[split_of(exercise.key, self.seed)].append(exercise)
            if fruitless > FRUITLESS_DRAWS:
                return None
        return self.ready[split].pop(0)


def _embedded(suite: str, cfg: DataConfig, between: Callable[[], None]) -> Suite:
    families = cfg.families or suite_families(cfg)
    supplies = {family: _Supply(family, cfg, between) for family in families}
    chosen: dict[str, list[Exercise]] = {}
    notes = []
    for split, count in sizes(cfg).items():
        chosen[split] = _mix(supplies, split, count)
        if len(chosen[split]) < count:
            notes.append(f"{suite}: {len(chosen[split])} {split} problems of {count} asked for: there are no more")
    problems = {split: [to_problem(suite, row) for row in rows] for split, rows in chosen.items()}
    train = chosen["train"]
    demonstrated = train[: min(cfg.demonstrations, len(train))]
    return Suite(problems, [_demonstration(suite, row) for row in demonstrated], notes)


def _mix(supplies: dict[str, _Supply], split: str, count: int) -> list[Exercise]:
    """`count` problems, the families in turn; a family that runs out leaves its share to the others."""
    live, rows = list(supplies), []
    while live and len(rows) < count:
        for family in list(live):
            exercise = supplies[family].take(split) if len(rows) < count else None
            if exercise is not None:
                rows.append(exercise)
            elif len(rows) < count:
                live.remove(family)
    return rows


def to_problem(suite: str, exercise: Exercise) -> Problem:
    """The row of an embedded exercise; the entry that reasoning-gym's scorer needs goes along where it is used, and so
    do the rule and the parts of the reward of a family of our own."""
    metadata: dict[str, Any] = {"key": exercise.key, "steps": len(exercise.steps)}
    if scored_by := EVERY_FAMILY[exercise.family].scored_by:
        metadata |= {"rule": exercise.entry["metadata"], "scored_by": list(scored_by)}
    if exercise.verifier == "task":
        entry = json.loads(json.dumps(exercise.entry))  # as it will be read back: lists, no tuples
        metadata |= {"task": exercise.entry["metadata"]["source_dataset"], "entry": entry}
    return Problem(
        id=f"{suite}-{_short_hash(exercise.key)}",
        suite=suite,
        family=exercise.family,
        messages=[{"role": "user", "content": exercise.question}],
        answer=exercise.answer,
        verifier=exercise.verifier,
        metadata=metadata,
    )


def _demonstration(suite: str, exercise: Exercise) -> dict[str, Any]:
    careful = stable_fraction(f"careful/{exercise.key}") < CAREFUL_SHARE
    text = solutions.response(exercise, solutions.reasoning(exercise, careful))
    problem = to_problem(suite, exercise)
    return _conversation(problem, text)


# Files and the hub


def read_rows(cfg: DataConfig) -> list[Row]:
    """All usable rows of a file or a hub data set. Raises StageFailed where there is none."""
    named, raw = (cfg.name, _hub_rows(cfg)) if cfg.source == "hub" else (cfg.path, _file_rows(cfg))
    names = sorted({name for row in raw.values() for name in row})
    try:
        rows = usable_rows(raw, resolve_columns(names, cfg.columns), cfg.instruction)
    except KeyError as error:
        raise StageFailed(f"{named} has no column {error}; data.columns can map {', '.join(names)}") from error
    except ValueError as error:
        raise StageFailed(f"{named}, {error}; mend that row, or take it out") from error
    if not rows:
        raise StageFailed(f"none of {len(raw)} rows has a question with an answer or a worked reply: map data.columns")
    return rows


def _file_rows(cfg: DataConfig) -> dict[int, dict[str, Any]]:
    assert cfg.path is not None
    try:
        return first_rows(Path(cfg.path), None)
    except ValueError as error:
        raise StageFailed(f"{cfg.path}, {error}; mend that row, or take it out") from error


def _hub_rows(cfg: DataConfig) -> dict[int, dict[str, Any]]:
    import datasets

    table = datasets.load_dataset(cfg.name, cfg.subset, split=cfg.split, revision=cfg.revision)
    return {number: dict(row) for number, row in enumerate(table, start=1)}


def _from_rows(suite: str, cfg: DataConfig, rows: list[Row]) -> Suite:
    """Split by question, so that a question that comes twice (sampled solutions) stays on one side."""
    by_question: dict[str, list[Row]] = {}
    for row in rows:
        by_question.setdefault(normalise(row.messages[-1]["content"]), []).append(row)
    judged = {question for question, found in by_question.items() if any(row.answer for row in found)}
    order = sorted(judged, key=lambda question: (stable_int(f"order/{cfg.seed}/{question}"), question))
    if len(order) < len(SPLITS):
        raise StageFailed(f"{suite}: {len(order)} distinct questions with an answer; three splits need at least three")
    counts = cut_sizes(len(order), sizes(cfg))
    splits: dict[str, list[Problem]] = {}
    for split in ("test", "dev", "train"):
        questions, order = order[: counts[split]], order[counts[split] :]
        splits[split] = [_row_problem(suite, cfg, question, by_question[question]) for question in questions]
    held_out = {normalise(row.messages[-1]["content"]) for split in ("dev", "test") for row in splits[split]}
    demonstrations = [
        _conversation(_row_problem(suite, cfg, question, found), row.reply, row.messages)
        for question, found in by_question.items()
        if question not in held_out
        for row in found
        if row.reply is not None
    ][: cfg.demonstrations]
    notes = [f"{suite}: {len(rows)} rows, {len(judged)} distinct questions with an answer"]
    if counts != sizes(cfg):
        cut = ", ".join(f"{counts[split]} {split}" for split in SPLITS)
        notes.append(f"{suite}: fewer rows than asked for, which leaves {cut}")
    return Suite({split: splits[split] for split in SPLITS}, demonstrations, notes)


def cut_sizes(available: int, wanted: dict[str, int]) -> dict[str, int]:
    """How many go to each split: what is wanted where there is enough; else dev and test first, at least one each and
    40% of the rows at most, and train what they leave."""
    if available >= sum(wanted.values()):
        return dict(wanted)
    held = wanted["dev"] + wanted["test"]
    allowed = min(held, int(0.4 * available))
    dev = max(1, allowed * wanted["dev"] // held)
    test = max(1, allowed - dev)
    return {"train": min(wanted["train"], available - dev - test), "dev": dev, "test": test}


def _row_problem(suite: str, cfg: DataConfig, question: str, rows: list[Row]) -> Problem:
    row = next((row for row in rows if row.answer), rows[0])
    return Problem(
        id=f"{suite}-{_short_hash(question)}",
        suite=suite,
        family=cfg.name.split("/")[-1] if cfg.source == "hub" and cfg.name else Path(cfg.path or "rows").stem,
        messages=row.messages,
        answer=row.answer or "",
        verifier=row.verifier or cfg.verifier,
        metadata=row.metadata,
    )


def _conversation(problem: Problem, reply: str, messages: list[dict[str, str]] | None = None) -> dict[str, Any]:
    turns = [*(messages or problem.messages), {"role": "assistant", "content": reply}]
    return {"messages": turns, "problem_id": problem.id, "suite": problem.suite}


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]
