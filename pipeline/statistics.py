"""Numbers about held-out accuracy: pass@k, intervals, and paired differences. numpy only; stages and reports share it.

The unit of resampling is the problem, not the response: the responses to one problem are not independent, and treating
them so would make every interval about sqrt(samples) too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, in the unit of the values."""

    mean: float
    low: float
    high: float
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that one of `k` responses is right, from `c` right among `n` >= k.

    1 - C(n-c, k) / C(n, k), arXiv:2107.03374.
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} samples a problem, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def estimate(values: list[float], seed: int = 0) -> Estimate:
    """Mean of one value a problem with its 95% percentile bootstrap interval."""
    values_P = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 250):  # 250 resamples at a time: a matrix of a few MB
        rows = generator.integers(len(values_P), size=(250, len(values_P)))
        means[start : start + 250] = values_P[rows].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(values_P.mean()), float(low), float(high), len(values_P))


def paired_difference(after: dict[str, float], before: dict[str, float], seed: int = 0) -> Estimate | None:
    """Mean of `after - before` over the problems (by id) that both answered; None where there are none.

    Paired, because problems differ far more in difficulty than two models do in skill: the difference is known several
    times better than either accuracy.
    """
    shared = sorted(after.keys() & before.keys())
    if not shared:
        return None
    return estimate([after[key] - before[key] for key in shared], seed)
