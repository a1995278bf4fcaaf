"""Who is held out: one pure function of the problem itself and the data seed.

So a held-out problem can never come up in training, whatever is generated later (problem sets, demonstrations, a base
model's text) and in whatever wording. It is checked all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pipeline.artifacts import StageFailed
from stages.parts.data.tasks import stable_fraction
from stages.parts.rollouts.types import Problem

TEST_SHARE, DEV_SHARE = 0.2, 0.1  # of all problems that a generated family has
_BLANK = re.compile(r"\s+")


def split_of(key: str, seed: int) -> str:
    """train | dev | test."""
    place = stable_fraction(f"split/{seed}/{key}")
    if place < TEST_SHARE:
        return "test"
    return "dev" if place < TEST_SHARE + DEV_SHARE else "train"


def normalise(question: str) -> str:
    """A question without what does not make it another one: case, blank space, punctuation at its end."""
    return _BLANK.sub(" ", question).strip().rstrip("?.!:").strip().casefold()


def identities(problem: Problem) -> set[str]:
    """What two problems must not share to be different: the wording, and the problem behind it where it is known."""
    known = {problem.metadata["key"]} if "key" in problem.metadata else set()
    return known | {normalise(problem.messages[-1]["content"])}


def check_disjoint(splits: Mapping[str, Iterable[Problem]]) -> None:
    """Raises StageFailed where a problem stands in two splits, whatever its suite, or two problems share an id."""
    seen: dict[str, str] = {}
    ids: set[str] = set()
    for split, problems in splits.items():
        for problem in problems:
            if problem.id in ids:
                raise StageFailed(f"two problems have the id {problem.id}")
            ids.add(problem.id)
            for identity in identities(problem):
                if seen.setdefault(identity, split) != split:
                    raise StageFailed(f"'{identity}' is both in {seen[identity]} and in {split}: held-out data leaks")
