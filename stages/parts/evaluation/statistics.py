"""pass@k and how sure one can be of it. numpy only.

The unit of resampling is the problem, not the response: the responses to one problem are not independent, and an
interval over responses would be about sqrt(samples) too narrow. Two models are compared on the problems both answered,
paired: problems differ more than models do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its bootstrap interval, in the unit of the values."""

    mean: float
    low: float
    high: float
    problems: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k responses is right, from c right ones of n: 1 - C(n-c, k) / C(n, k).

    arXiv:2107.03374. Raises ValueError where n < k.
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} responses a problem, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap(values: list[float], seed: int = 0) -> Interval:
    """Mean of one value a problem with its 95% percentile interval."""
    values_P = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 250):  # 250 at a time: a matrix of a few megabytes
        chosen = generator.integers(len(values_P), size=(250, len(values_P)))
        means[start : start + 250] = values_P[chosen].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values_P.mean()), float(low), float(high), len(values_P))


def paired_bootstrap(after: dict[str, float], before: dict[str, float], seed: int = 0) -> Interval:
    """Mean of after - before over the problems (by id) that both have. Raises ValueError where they share none."""
    shared = sorted(after.keys() & before.keys())
    if not shared:
        raise ValueError("the two results share no problem: there is no paired difference")
    return bootstrap([after[key] - before[key] for key in shared], seed)
