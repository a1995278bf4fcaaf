"""Conversations as token ids with a mask, and which of them an optimizer step sees.

Differs from the textbook: there is no data loader with a state. The examples of step s are a pure function of (seed,
s): each source is walked through a fresh permutation per epoch, a step may span two epochs, and so a stage resumes at
any step, on any number of ranks, without replaying or skipping an example (open-instruct#1523, verl#7401).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from pipeline.artifacts import StageFailed
from stages.parts.data.template import render_conversation

T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    ids: list[int]
    mask: list[bool]  # the tokens that carry loss


@dataclass
class Source:
    """One pool of examples, and what did not make it in."""

    name: str
    examples: list[Example]
    counts: dict[str, int] = field(default_factory=dict)  # conversations, dropped, split


def encode_source(name: str, rows: list[dict[str, Any]], tokenizer: Any, max_tokens: int, over_length: str) -> Source:
    """Tokenize conversations. Longer than `max_tokens`: `drop`, `split` into pieces, or `error`; counted. Cutting off
    the end is not on offer: it teaches a model never to stop. Raises StageFailed where nothing supervised is left.
    """
    source = Source(name, [], {"conversations": len(rows), "dropped": 0, "split": 0})
    for row in rows:
        ids, mask = render_conversation(tokenizer, row["messages"], last_only=row.get("loss") == "last")
        if len(ids) <= max_tokens:
            source.examples.append(Example(ids, mask))
        elif over_length == "drop":
            source.counts["dropped"] += 1
        elif over_length == "split":
            source.counts["split"] += 1
            source.examples += split(Example(ids, mask), max_tokens)
        else:
            raise StageFailed(
                f"{name}: a conversation of {len(ids)} tokens is longer than max_tokens={max_tokens}; raise it, or"
                " write over_length=drop or over_length=split"
            )
    if not any(any(example.mask[1:]) for example in source.examples):
        raise StageFailed(
            f"{name}: no supervised token in {len(rows)} conversations ({source.counts['dropped']} dropped as longer"
            f" than max_tokens={max_tokens}): nothing would be learned"
        )
    return source


def split(example: Example, max_tokens: int) -> list[Example]:
    """Consecutive pieces of at most `max_tokens`; only the last holds the end token. A piece starts with the last token
    of the one before it, so that every supervised token is predicted once. Pieces without supervised tokens go."""
    pieces = []
    for start in range(0, len(example.ids) - 1, max_tokens - 1):
        end = start + max_tokens
        piece = Example(example.ids[start:end], [False, *example.mask[start + 1 : end]])
        if any(piece.mask):
            pieces.append(piece)
    return pieces


def examples_of_step(sources: list[Source], per_step: list[int], seed: int, step: int) -> list[Example]:
    """The examples of optimizer step `step`: per_step[i] from sources[i], in a fixed order."""
    chosen = []
    for source, count in zip(sources, per_step, strict=True):
        chosen += rows_of_step(source.examples, source.name, count, seed, step)
    return chosen


def rows_of_step(rows: list[T], name: str, count: int, seed: int, step: int) -> list[T]:
    """`count` rows of the source `name`: the next ones of this epoch's permutation, and of the next epoch's."""
    places = [divmod(position, len(rows)) for position in range(step * count, (step + 1) * count)]
    return [rows[_permutation(seed, name, epoch, len(rows))[place]] for epoch, place in places]


def shares(examples_per_step: int, general_fraction: float, sources: list[Source]) -> list[int]:
    """How many examples of a step come from each source: the first gets what the second (general) leaves."""
    if len(sources) == 1:
        return [examples_per_step]
    general = round(examples_per_step * general_fraction)
    return [examples_per_step - general, general]


@lru_cache(maxsize=8)
def _permutation(seed: int, name: str, epoch: int, size: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}/{name}/{epoch}").shuffle(order)  # a string seeds by its hash digest: the same everywhere
    return order
