"""The embedded tasks with a reference text: "the cat sees a dog in spanish?" and what it should say, scored by chrF.

Small on purpose: twelve nouns of both genders, six verbs, definite and indefinite articles, 3,168 sentences. Half of a
word right is worth something, as chrF has it; the wrong gender costs an article.
"""

from __future__ import annotations

import random
from typing import Any

from stages.parts.data.tasks import Family

NOUNS = {
    "cat": ("gato", "m"), "dog": ("perro", "m"), "bird": ("pajaro", "m"), "boy": ("chico", "m"), "sun": ("sol", "m"),
    "book": ("libro", "m"), "cow": ("vaca", "f"), "girl": ("chica", "f"), "house": ("casa", "f"), "moon": ("luna", "f"),
    "queen": ("reina", "f"), "table": ("mesa", "f"),
}  # fmt: skip
VERBS = {"sees": "ve", "wants": "quiere", "paints": "pinta", "finds": "halla", "loves": "ama", "sells": "vende"}
ARTICLES = {("the", "m"): "el", ("the", "f"): "la", ("a", "m"): "un", ("a", "f"): "una"}


def draw_translation(rng: random.Random) -> dict[str, Any]:
    """A sentence with its translation, in the shape of a reasoning-gym entry."""
    first, second = rng.sample(list(NOUNS), 2)
    parts = [(rng.choice(("the", "a")), first), (rng.choice(list(VERBS)),), (rng.choice(("the", "a")), second)]
    pairs = [(" ".join(part), translate(part)) for part in parts]
    english, spanish = (" ".join(side) for side in zip(*pairs, strict=True))
    return {"question": english, "answer": spanish, "metadata": {"pairs": [list(pair) for pair in pairs]}}


def translate(part: tuple[str, ...]) -> str:
    """A verb, or an article with its noun."""
    if len(part) == 1:
        return VERBS[part[0]]
    noun, gender = NOUNS[part[1]]
    return f"{ARTICLES[part[0], gender]} {noun}"


def steps_of(entry: dict[str, Any]) -> list[str]:
    return [f"{english}={spanish}" for english, spanish in entry["metadata"]["pairs"]]


TRANSLATION = {
    "to_spanish": Family(
        items=draw_translation,
        key=lambda entry: entry["question"],
        phrasings=("{} in spanish?", "in spanish: {}"),
        steps=steps_of,
        reply=lambda entry: entry["answer"],
        verifier="chrf",
        scored_by=("accuracy", "format"),  # the thinking is in two languages by nature
    ),
}
