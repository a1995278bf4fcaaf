"""chrF against numbers worked out by hand."""

from __future__ import annotations

import pytest

from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.chrf import chrf, verify_chrf


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        # orders 1, 2, 3: 2/3, 1/2 (ab; not bc, bd), 0/1; both averages (0.6667 + 0.5 + 0) / 3 = 0.388889
        ("abc", "abd", 0.3888888889),
        # order 1: precision 2/2, recall 2/4; order 2: 1/1, 1/3; longer ones the hypothesis has not.
        # P = 1, R = 0.416667, F2 = 5 * 0.416667 / (4 + 0.416667)
        ("ab", "abcd", 0.4716981132),
        # order 1: 2/4, 2/2; order 2: 1/3, 1/1: P = 0.416667, R = 1, F2 = 5 * 0.416667 / (4 * 0.416667 + 1)
        ("abcd", "ab", 0.78125),
        ("aaa", "a", 0.7142857143),  # counted once: P = 1/3, R = 1, F2 = (5/3) / (4/3 + 1)
        ("el gato ve", "elgatove", 1.0),  # blanks do not count
        ("xyz", "abc", 0.0),
        ("", "abc", 0.0),
    ],
)
def test_golden(hypothesis, reference, expected):
    assert chrf(hypothesis, reference) == pytest.approx(expected, abs=1e-9)


def test_the_reference_itself_is_exactly_right_and_a_missing_one_cannot_be_judged():
    problem = Problem("p", "translation", "es", [{"role": "user", "content": "x"}], "el gato ve un perro", "chrf")
    assert verify_chrf(problem, " el gato ve un perro").value == 1.0
    assert 0.5 < verify_chrf(problem, "el gato ve un pez").value < 1.0
    problem.answer = " "
    assert verify_chrf(problem, "el gato").value is None
