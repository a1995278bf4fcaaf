"""Numbers about held-out accuracy: pass@k, intervals, and paired differences. numpy only.

The unit of resampling is the problem, not the response: the responses to one problem are not independent, and treating
them so would make every interval about sqrt(samples) too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SEED = 0  # the same interval in every reader of the same results


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


def estimate(values: list[float]) -> Estimate:
    """Mean over problems with a percentile bootstrap interval."""
    return _bootstrap(np.asarray(values, dtype=float))


def paired_difference(after: dict[str, float], before: dict[str, float]) -> Estimate | None:
    """Mean of `after - before` over the problems (by id) that both answered; None where there are none.

    Paired, because problems differ far more in difficulty than two models do in skill: the difference is known several
    times better than either accuracy.
    """
    shared = sorted(after.keys() & before.keys())
    if not shared:
        return None
    return _bootstrap(np.asarray([after[key] - before[key] for key in shared]))


def _bootstrap(values: np.ndarray) -> Estimate:
    generator = np.random.default_rng(SEED)
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 250):  # 250 resamples at a time: a matrix of a few MB
        rows = generator.integers(len(values), size=(250, len(values)))
        means[start : start + 250] = values[rows].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(values.mean()), float(low), float(high), len(values))
