"""Which problems of a set are used where not all are. numpy only."""

from __future__ import annotations

import numpy as np

from stages.parts.rollouts.types import Problem


def choose(problems: list[Problem], limit: int, seed: int) -> list[Problem]:
    """At most `limit` problems, drawn without replacement by `seed` alone and left in their order.

    Drawn, not the first ones: a user's file may be sorted by difficulty or topic.
    """
    if len(problems) <= limit:
        return problems
    chosen = np.random.default_rng(seed).choice(len(problems), size=limit, replace=False)
    return [problems[index] for index in np.sort(chosen)]
