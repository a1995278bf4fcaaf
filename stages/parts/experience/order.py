"""Which problems a rollout samples: a pure function of (seed, how many each suite has given so far).

The cursor is the whole state, so a resumed run draws what an uninterrupted one would have drawn. Every suite is walked
in its own shuffled order, reshuffled each epoch: no problem comes twice before all have come once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.artifacts import StageFailed
from stages.parts.data.problems import load_problems
from stages.parts.experience.config import ExperienceConfig
from stages.parts.rollouts.types import Problem

Cursor = dict[str, int]  # suite -> problems drawn so far


def draw(pools: dict[str, list[Problem]], shares: dict[str, float], seed: int, cursor: Cursor, n: int) -> list[Problem]:
    """The next `n` problems, suites mixed by their shares and then shuffled; advances `cursor` in place."""
    problems: list[Problem] = []
    mix = np.random.default_rng((seed, sum(cursor.values()))).permutation(n)
    for index, (suite, count) in enumerate(_allot(shares, n, sum(cursor.values())).items()):
        first = cursor.setdefault(suite, 0)
        problems += [_at(pools[suite], (seed, index), first + offset) for offset in range(count)]
        cursor[suite] = first + count
    return [problems[place] for place in mix]


def training_problems(cfg: ExperienceConfig, folder: Path) -> tuple[dict[str, list[Problem]], list[Problem]]:
    """Training problems by suite, and the dev problems of all suites that the monitors answer."""
    pools = {suite: load_problems(folder, "train", [suite]) for suite in cfg.suites}
    if empty := [suite for suite, pool in pools.items() if not pool]:
        raise StageFailed(f"suites {empty} have no training problems; leave them out of `suites`")
    dev = load_problems(folder, "dev")
    suites = dict.fromkeys((*cfg.suites, *(problem.suite for problem in dev)))
    heldout = [problem for suite in suites for problem in [p for p in dev if p.suite == suite][: cfg.monitor_problems]]
    return pools, heldout


def _allot(shares: dict[str, float], n: int, already: int) -> dict[str, int]:
    """Whole numbers that keep every suite within one problem of its share of all problems drawn so far."""
    total = sum(shares.values())
    cumulative, counts, taken = 0.0, {}, 0
    for suite, share in shares.items():
        cumulative += share / total
        upto = round(cumulative * (already + n)) - round(cumulative * already)
        counts[suite] = upto - taken
        taken = upto
    return counts


def _at(pool: list[Problem], key: tuple[int, int], position: int) -> Problem:
    epoch, place = divmod(position, len(pool))
    return pool[np.random.default_rng((*key, epoch)).permutation(len(pool))[place]]
