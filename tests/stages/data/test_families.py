"""The embedded families: every step of every worked solution is true, and draws are a pure function of their place."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import islice

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data import solutions
from stages.parts.data.checks import MOST_DIFFICULT
from stages.parts.data.families import EVERY_FAMILY, FAMILIES, REASONING
from stages.parts.data.sources import to_problem
from stages.parts.data.tasks import draw, near_miss
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.reward import score_response

EQUATION = re.compile(r"(-?\d+)([-+*/%])(-?\d+)=(-?\d+)")
ARITHMETIC = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else None,
}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_solutions_are_true_and_judged_right(name, level):
    cfg = RewardConfig(format=1.0, language=1.0)
    for exercise in islice(draw(name, level, "test"), 60):
        assert exercise.steps
        if name in REASONING:
            for step in exercise.steps:
                left, sign, right, value = EQUATION.fullmatch(step).groups()
                assert ARITHMETIC[sign](int(left), int(right)) == int(value), step
        problem = to_problem("any", exercise)
        for careful in (True, False):
            text = solutions.response(exercise, solutions.reasoning(exercise, careful))
            assert score_response(problem, text, False, cfg).value == 3.0, text
        wrong = solutions.response(exercise, None, near_miss(exercise))
        assert score_response(problem, wrong, False, cfg).parts["accuracy"] == 0.0, (exercise, wrong)


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_are_a_function_of_their_place(name):
    first = list(islice(draw(name, 1, "a"), 12))
    other = draw(name, 1, "b")  # shares the generator object with the draws above
    next(other)
    assert list(islice(draw(name, 1, "a"), 12)) == first
    assert [row.key for row in islice(other, 11)] != [row.key for row in first[1:]]


def test_difficulty_makes_longer_problems():
    def mean_steps(level):
        return sum(len(row.steps) for row in islice(draw("chain_sum", level, "x"), 200)) / 200

    assert mean_steps(1) < mean_steps(2) < mean_steps(3)


@pytest.mark.parametrize("name", REASONING)
def test_every_difficulty_has_exercises(name):
    for level in (6, MOST_DIFFICULT):
        assert len(list(islice(draw(name, level, "seed"), 50))) == 50


def test_a_family_with_few_exercises_at_a_difficulty_ends(monkeypatch):
    fits = iter([True, False, True])
    few = replace(FAMILIES["chain_sum"], keep=lambda *_: next(fits, False))
    monkeypatch.setitem(EVERY_FAMILY, "chain_sum", few)
    assert len(list(draw("chain_sum", 1, "seed"))) == 2


def test_a_family_without_exercises_at_a_difficulty_is_told(monkeypatch):
    monkeypatch.setitem(EVERY_FAMILY, "chain_sum", replace(FAMILIES["chain_sum"], keep=lambda entry, level: False))
    with pytest.raises(StageFailed, match="of 20,000 exercises of chain_sum none fits difficulty=1: write a lower one"):
        next(draw("chain_sum", 1, "seed"))


def test_reflection_corrects_a_slip():
    exercise = next(row for row in draw("chain_sum", 1, "x") if len(row.steps) == 3)
    texts = {solutions.reflecting(exercise, random.Random(seed)) for seed in range(20)}
    assert any("wait" in text for text in texts) and any("check" in text for text in texts)
    assert all(exercise.steps[-1] in text for text in texts)
    assert "espera" in "".join(solutions.reflecting(exercise, random.Random(seed), "es") for seed in range(20))
