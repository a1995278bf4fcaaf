"""The text that the embedded base model learns from, written on the fly: a pure function of (seed, step).

Like the text that real models are pretrained on, it answers in several ways at once: mostly in a hurry, short and often
wrong; less often step by step, with or without `<think>` tags; now and then in another language, or looking back
("wait, ..."). Nothing in it is chosen for reward: that is left to reinforcement learning.
Held-out problems never occur: every document's problem is put to the split function that the problem sets use, and
compared with the held-out problems themselves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import StageFailed
from stages.base_model.config import BaseModelConfig
from stages.parts.data import solutions
from stages.parts.data.families import FAMILIES
from stages.parts.data.splits import normalise, split_of
from stages.parts.data.tasks import Exercise, draw

DRAWS_PER_STEP = 4096  # positions of a family's stream set apart for each step


@dataclass
class Corpus:
    """What is written about, and what must not be: `held_out` holds identities of problems (splits.identities)."""

    cfg: BaseModelConfig
    families: list[str]
    difficulty: dict[str, int]  # of each family
    split_seed: int
    held_out: set[str]

    def documents(self, step: int) -> list[list[dict[str, str]]]:
        """The conversations of one step. Raises StageFailed where one would show a held-out problem."""
        rng = random.Random(f"corpus/{self.cfg.seed}/{step}")
        chosen = [self.families[rng.randrange(len(self.families))] for _ in range(self.cfg.documents_per_step)]
        streams = {
            name: draw(name, self.difficulty[name], f"corpus/{self.cfg.seed}", step * DRAWS_PER_STEP)
            for name in dict.fromkeys(chosen)
        }
        rows = []
        for name in chosen:
            exercise = next(row for row in streams[name] if split_of(row.key, self.split_seed) == "train")
            if {exercise.key, normalise(exercise.question)} & self.held_out:
                raise StageFailed(f"the base model's text would show the held-out problem '{exercise.question}'")
            rows.append(solutions.messages(exercise, self.answer(exercise, rng)))
        return rows

    def answer(self, exercise: Exercise, rng: random.Random) -> str:
        """One of the ways in which people answer."""
        cfg = self.cfg
        if rng.random() >= cfg.reasoned_fraction:
            return solutions.response(exercise, None, solutions.instant_answer(exercise))
        language = "es" if rng.random() < cfg.foreign_fraction else "en"
        if rng.random() < cfg.reflection_fraction:
            trace = solutions.reflecting(exercise, rng, language)
        else:
            trace = solutions.reasoning(exercise, rng.random() < cfg.careful_fraction, language)
        return solutions.response(exercise, trace, tags=rng.random() >= cfg.untagged_fraction)


def make_corpus(cfg: BaseModelConfig, facts: dict[str, Any], held_out: set[str]) -> Corpus:
    """The corpus for the wired problems (`facts` of their port; {}: none are wired)."""
    suites: dict[str, list[str]] = facts.get("families", {})
    named = [name for names in suites.values() for name in names if name in FAMILIES]
    families = cfg.families or named or list(FAMILIES)
    levels = {name: facts["difficulty"][suite] for suite, names in suites.items() for name in names}
    return Corpus(cfg, families, {name: levels.get(name, 1) for name in families}, facts.get("split_seed", 0), held_out)
