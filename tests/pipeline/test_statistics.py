"""pass@k and intervals against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.statistics import estimate, paired_difference, pass_at_k
from stages.parts.evaluation.statistics import bootstrap
from stages.parts.evaluation.statistics import pass_at_k as evaluation_pass_at_k


def test_pass_at_k():
    assert pass_at_k(n=4, c=1, k=1) == pytest.approx(1 / 4)
    assert pass_at_k(n=4, c=1, k=2) == pytest.approx(1 / 2)  # 1 - C(3,2)/C(4,2) = 1 - 3/6
    assert pass_at_k(n=8, c=2, k=4) == pytest.approx(1 - 15 / 70)  # 1 - C(6,4)/C(8,4)
    assert pass_at_k(n=8, c=0, k=8) == 0
    assert pass_at_k(n=8, c=1, k=8) == 1
    with pytest.raises(ValueError, match="at least 8 samples"):
        pass_at_k(n=4, c=1, k=8)


def test_interval_of_a_share_is_the_textbook_one():
    """400 problems, half of them right: 0.5 ± 1.96 sqrt(0.25 / 400) = 0.5 ± 0.049."""
    found = estimate([0.0, 1.0] * 200)
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.451, abs=0.004)
    assert found.high == pytest.approx(0.549, abs=0.004)
    assert estimate([0.0, 1.0] * 200) == found  # the same in every reader


def test_pairing_sees_what_two_intervals_do_not():
    """A constant gain of 2 points on problems of very different difficulty is known exactly."""
    before = {f"p{i}": value for i, value in enumerate(np.random.default_rng(0).uniform(0, 0.9, 300))}
    after = {key: value + 0.02 for key, value in before.items()}
    difference = paired_difference(after, before)
    assert difference is not None
    assert (difference.low, difference.mean, difference.high) == pytest.approx((0.02, 0.02, 0.02))
    assert estimate(list(after.values())).low < estimate(list(before.values())).high


def test_only_shared_problems_are_compared():
    difference = paired_difference({"a": 1.0, "b": 0.0, "x": 1.0}, {"b": 1.0, "a": 1.0, "y": 0.0})
    assert difference is not None
    assert (difference.mean, difference.problems) == (-0.5, 2)
    assert paired_difference({"a": 1.0}, {"b": 1.0}) is None


def test_report_and_evaluation_tell_the_same_interval():
    """pipeline/ knows only the heads of stages/, so both have these few lines; they must not drift apart."""
    values = np.random.default_rng(1).choice([0.0, 0.125, 0.5, 1.0], 200).tolist()
    here, there = estimate(values), bootstrap(values)
    assert (here.mean, here.low, here.high) == (there.mean, there.low, there.high)
    assert pass_at_k(8, 3, 4) == evaluation_pass_at_k(8, 3, 4)
