"""pass@k against the paper's formula worked by hand, intervals against theory."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from pipeline.statistics import estimate, paired_difference, pass_at_k


def test_pass_at_k_golden():
    # 1 - C(7,5)/C(10,5) = 1 - 21/252
    assert pass_at_k(10, 3, 5) == pytest.approx(0.9166666667, abs=1e-10)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 0, 2), (6, 2, 3), (6, 6, 1), (5, 4, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_1_is_the_mean_and_k_beyond_n_is_refused():
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)
    with pytest.raises(ValueError, match="at least 9 samples"):
        pass_at_k(8, 3, 9)


def test_interval_covers_what_it_should():
    # 400 problems with chance 0.3: the standard error is sqrt(0.3 * 0.7 / 400) = 0.0229, 1.96 of it 0.0449
    generator = np.random.default_rng(1)
    interval = estimate((generator.random(400) < 0.3).astype(float).tolist())
    assert interval.problems == 400
    assert interval.high - interval.mean == pytest.approx(0.0449, abs=0.006)
    assert interval.mean - interval.low == pytest.approx(0.0449, abs=0.006)
    covered = 0
    for _ in range(200):
        trial = estimate((generator.random(100) < 0.3).astype(float).tolist())
        covered += trial.low <= 0.3 <= trial.high
    assert 0.88 <= covered / 200 <= 0.99


def test_interval_is_seeded_and_degenerate_cases_are_exact():
    values = [0.0, 1.0, 0.5, 0.25]
    assert estimate(values, 3) == estimate(values, 3)
    ones = estimate([1.0] * 5)
    assert (ones.low, ones.mean, ones.high) == (1.0, 1.0, 1.0)


def test_pairing_sees_what_intervals_of_each_hide():
    generator = np.random.default_rng(0)
    difficulty = generator.random(300)
    before = {f"p{i}": float(d) for i, d in enumerate(difficulty)}
    after = {key: value + 0.02 for key, value in before.items()} | {"unshared": 0.0}
    difference = paired_difference(after, before)
    assert difference.problems == 300
    assert difference.low == pytest.approx(0.02) and difference.high == pytest.approx(0.02)
    assert estimate(list(after.values())).low < estimate(list(before.values())).high
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None


def test_only_shared_problems_are_compared():
    difference = paired_difference({"a": 1.0, "b": 0.0, "x": 1.0}, {"b": 1.0, "a": 1.0, "y": 0.0})
    assert difference is not None
    assert (difference.mean, difference.problems) == (-0.5, 2)
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None
