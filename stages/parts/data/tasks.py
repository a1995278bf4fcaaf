"""What an embedded task family is, and how exercises are drawn from it.

reasoning-gym supplies problem, gold answer and scorer. Its prompts are paragraphs, so the question is worded again,
briefly, in one of a few phrasings; and it has no worked solutions, so each family says how a person would write the
steps. Families stand in `families.py`; this file draws from them. Families of our own (`open_families.py`) bring
`items` in the place of a task.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipeline.artifacts import StageFailed

UNFIT_DRAWS = 20_000  # in a row

Entry = dict[str, Any]  # reasoning-gym's: question, answer, metadata


@dataclass(frozen=True)
class Family:
    """One task family: how a reasoning-gym entry becomes a short question with a written-out solution."""

    key: Callable[[Entry], str]  # the problem itself, however it is worded; two equal keys are one problem
    phrasings: tuple[str, ...]  # with {} for the key
    steps: Callable[[Entry], list[str]]  # a worked solution, a short line a step; the last one shows the answer
    task: str = ""  # name in reasoning-gym
    settings: Callable[[int], dict[str, Any]] = lambda level: {}  # difficulty -> its configuration
    items: Callable[[random.Random], Entry] | None = None  # entries of our own, in the place of a task's
    verifier: str = "math"
    answer: Callable[[Entry], str] = lambda entry: entry["answer"]
    keep: Callable[[Entry, int], bool] = lambda entry, level: True  # leave out what the dial does not ask for
    reply: Callable[[Entry], str] | None = None  # the whole answer, where it is not the boxed gold
    scored_by: tuple[str, ...] = ()  # parts of the reward that its rows name; none: the rules, as always


@dataclass(frozen=True)
class Exercise:
    """A drawn problem with its solution; what problem rows, demonstrations and base text are made of."""

    family: str
    key: str
    question: str
    answer: str
    steps: tuple[str, ...]
    verifier: str
    entry: Entry = field(compare=False)
    reply: str | None = None  # the whole answer of an open family


def draw(name: str, difficulty: int, seed: str, start: int = 0) -> Iterator[Exercise]:
    """Exercises of one family, a pure function of (name, difficulty, seed) and their position; they end where hardly
    any more fit the dial.

    Equal problems may come again. reasoning-gym seeds item i with seed + i, so seeds are spread by hashing: near seeds
    would otherwise share most of their items. Raises StageFailed where there is not one.
    """
    from stages.parts.data.families import EVERY_FAMILY

    family = EVERY_FAMILY[name]
    dataset = _dataset(name, difficulty)
    base = stable_int(f"{seed}/{name}") % 2**48
    position = last = start
    while position - last < UNFIT_DRAWS:
        dataset.seed = base  # each time: draws of one family share the object
        entry = dataset[position]
        position += 1
        if family.keep(entry, difficulty):
            last = position
            yield _exercise(name, family, entry)
    if last == start:
        problem = f"of {UNFIT_DRAWS:,} exercises of {name} none fits difficulty={difficulty}"
        raise StageFailed(f"{problem}: write a lower one, or leave {name} out of families")


def stable_int(text: str) -> int:
    """A 60-bit integer from text, the same in every process (unlike `hash`)."""
    return int(hashlib.sha256(text.encode("utf-8")).hexdigest()[:15], 16)


def stable_fraction(text: str) -> float:
    """A number in [0, 1) from text."""
    return stable_int(text) / 16**15


def _exercise(name: str, family: Family, entry: Entry) -> Exercise:
    key = family.key(entry)
    phrasing = family.phrasings[stable_int(f"phrasing/{key}") % len(family.phrasings)]
    return Exercise(
        family=name,
        key=f"{name}:{key}",
        question=phrasing.format(key),
        answer=family.answer(entry),
        steps=tuple(family.steps(entry)),
        verifier=family.verifier,
        entry=entry,
        reply=None if family.reply is None else family.reply(entry),
    )


@cache
def _dataset(name: str, difficulty: int) -> Any:
    import reasoning_gym

    from stages.parts.data.families import EVERY_FAMILY

    family = EVERY_FAMILY[name]
    if family.items is not None:
        return _OwnItems(family.items)
    return reasoning_gym.create_dataset(family.task, seed=0, size=1, **family.settings(difficulty))


@dataclass
class _OwnItems:
    """Entries of our own behind the same two handles as a reasoning-gym data set."""

    items: Callable[[random.Random], Entry]
    seed: int = 0

    def __getitem__(self, position: int) -> Entry:
        return self.items(random.Random(f"{self.seed}/{position}"))


def near_miss(exercise: Exercise) -> str:
    """A wrong answer of the kind people give in haste: always the same one for the same problem."""
    rng = random.Random(stable_int(f"miss/{exercise.key}"))
    answer = exercise.answer
    if answer.lstrip("-").isdigit():
        return str(int(answer) + rng.choice((-3, -2, -1, 1, 2, 3)))
    parts = answer.split(" ") if " " in answer else list(answer)
    if len(parts) < 2:
        return answer + answer
    index = rng.randrange(len(parts) - 1)
    swapped = [*parts[:index], parts[index + 1], parts[index], *parts[index + 2 :]]
    if swapped == parts:
        swapped = parts[:-1]
    return (" " if " " in answer else "").join(swapped)
