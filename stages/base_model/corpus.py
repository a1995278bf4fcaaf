"""The text that the embedded base model learns from, written on the fly: a pure function of (seed, step).

Like the text that real models are pretrained on, it answers in several ways at once: mostly in a hurry, short and often
wrong; less often step by step, with or without `<think>` tags; now and then in another language, or looking back
("wait, ..."). Nothing in it is chosen for reward: that is left to reinforcement learning.
The first part of the training is nearly all worked examples, careful ones: so small a model learns to calculate from
them long before it would from the mixture, and the rest is enough to learn how people answer.
Held-out problems never occur: every exercise is put to the split function that the problem sets use, and compared with
the held-out problems themselves.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.artifacts import StageFailed
from stages.base_model.config import BaseModelConfig
from stages.parts.data import solutions
from stages.parts.data.families import FAMILIES
from stages.parts.data.splits import normalise, split_of
from stages.parts.data.tasks import Exercise, draw

WORKED_REASONED, WORKED_CAREFUL = 0.95, 0.9  # shares in the first part (`worked_phase`)
POOL = 1000  # training exercises of a family that the text is about; drawing them is slow, writing about them is not


@dataclass
class Corpus:
    """What is written about, and what must not be: `held_out` holds identities of problems (splits.identities)."""

    cfg: BaseModelConfig
    pools: dict[str, list[Exercise]]  # family -> what may be written about

    def documents(self, step: int) -> list[list[dict[str, str]]]:
        """The conversations of one step."""
        rng = random.Random(f"corpus/{self.cfg.seed}/{step}")
        families = list(self.pools)
        rows = []
        for _ in range(self.cfg.documents_per_step):
            exercise = rng.choice(self.pools[rng.choice(families)])
            rows.append(solutions.messages(exercise, self.answer(exercise, rng, step)))
        return rows

    def answer(self, exercise: Exercise, rng: random.Random, step: int) -> str:
        """One of the ways in which people answer."""
        cfg = self.cfg
        reasoned, careful = cfg.reasoned_fraction, cfg.careful_fraction
        if step < cfg.worked_phase * cfg.steps:
            reasoned, careful = max(reasoned, WORKED_REASONED), max(careful, WORKED_CAREFUL)
        if rng.random() >= reasoned:
            return solutions.response(exercise, None, solutions.instant_answer(exercise))
        language = "es" if rng.random() < cfg.foreign_fraction else "en"
        if rng.random() < cfg.reflection_fraction:
            trace = solutions.reflecting(exercise, rng, language)
        else:
            trace = solutions.reasoning(exercise, rng.random() < careful, language)
        return solutions.response(exercise, trace, tags=rng.random() >= cfg.untagged_fraction)


def make_corpus(cfg: BaseModelConfig, facts: dict[str, Any], held_out: set[str]) -> Corpus:
    """The corpus for the wired problems (`facts` of their port; {}: none are wired), none of whose `held_out` problems
    (splits.identities) it writes about."""
    suites: dict[str, list[str]] = facts.get("families", {})
    named = [name for names in suites.values() for name in names if name in FAMILIES]
    levels = {name: facts["difficulty"][suite] for suite, names in suites.items() for name in names}
    split_seed = facts.get("split_seed", 0)
    pools = {}
    for name in cfg.families or named or list(FAMILIES):
        rows = _pool(name, levels.get(name, 1), cfg.seed, split_seed)
        # The split alone does not know other spellings ("Dike", "dike"), nor the problems of somebody's own file.
        pools[name] = [row for row in rows if not {row.key, normalise(row.question)} & held_out]
        if not pools[name]:
            raise StageFailed(
                f"every exercise of {name} is held out: leave it out of families, or lower the difficulty"
            )
    return Corpus(cfg, pools)


@cache
def _pool(name: str, level: int, seed: int, split_seed: int) -> list[Exercise]:
    """Training exercises of one family; filtering reasoning-gym's draws takes seconds where few fit the dial."""
    training = (row for row in draw(name, level, f"corpus/{seed}") if split_of(row.key, split_seed) == "train")
    return list(itertools.islice(training, POOL))
