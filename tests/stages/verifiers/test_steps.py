"""Arithmetic steps in text: which there are, where they end, which are right, and how they cannot be farmed."""

from __future__ import annotations

import random

import pytest

from stages.parts.data.families import REASONING
from stages.parts.data.solutions import reasoning, reflecting, response
from stages.parts.data.tasks import draw
from stages.parts.verifiers.steps import find_steps


def told(text: str, question: str = "", once: bool = False) -> list[tuple[str, bool]]:
    """(text up to the step's end, right) in few characters."""
    return [(text[: step.end][-3:], step.right) for step in find_steps(text, question, once)]


@pytest.mark.parametrize("family", REASONING)
def test_worked_solutions_are_all_right_and_slips_are_not(family: str) -> None:
    rng = random.Random(0)
    for _, exercise in zip(range(20), draw(family, 1, "test"), strict=False):
        text = response(exercise, reasoning(exercise))
        steps = find_steps(text, exercise.question)
        assert len(steps) == len(exercise.steps) and all(step.right for step in steps), text
        looked_back = reflecting(exercise, rng)
        right = sum(step.right for step in find_steps(looked_back, exercise.question))
        assert right - len(exercise.steps) in (0, 1)  # "8-4=4, 4-2=2. check: 4-2=2": there was a 4 left
        assert sum(not step.right for step in find_steps(looked_back, exercise.question)) == looked_back.count("wait")


def test_where_steps_end_and_which_hold() -> None:
    assert told("so 5+3=8, 8-2=7. \\boxed{6}") == [("3=8", True), ("2=7", False)]
    assert told("1. 2 + 3 = 5 apples\n2. 5*2=10.") == [("= 5", True), ("=10", True)]
    assert told("3+4=7-2=5") == [("7-2", False), ("2=5", True)]
    assert told("$1,200 + 300 = $1,500 in all") == [("500", True)]
    assert told("6 \\times 7 = 42 and 10 ÷ 4 = 2.5") == [(" 42", True), ("2.5", True)]
    assert told("10/3=3.33, 1/3+1/3=2/3, 0.1+0.2=0.3") == [(".33", False), ("2/3", True), ("0.3", True)]


@pytest.mark.parametrize(
    "text",
    ["x=3", "2*x=8", "x2+3=5", "2+3i=4", "a+b=7", "5=5", "9**9**9=1", "1/0 is nothing", "((((=", "=", "5 (3)=15"],
)
def test_what_is_no_step(text: str) -> None:
    assert told(text) == []


def test_an_equation_that_divides_by_zero_is_wrong() -> None:
    assert told("1/0=1") == [("0=1", False)]


def test_what_stands_in_the_box_is_the_answer_and_no_step() -> None:
    assert told("2+2=4 \\boxed{4+1=5}") == [("2=4", True)]


def test_steps_cannot_be_farmed() -> None:
    question = "5+3-2=?"
    assert told("1+1=2, 2+2=4, 5+3=8", question, once=True) == [("1=2", False), ("2=4", False), ("3=8", True)]
    again = "5+3=8, 8-2=6. check: 8-2=6, 5+3=8, 6+2=8"
    assert told(again, question, once=True) == [("3=8", True), ("2=6", True), ("2=8", False)]


def test_word_problems_may_use_a_number_again() -> None:
    text, question = "48/2=24, 48+24=72", "She sold 48 clips in April, and half as many in May."
    assert [right for _, right in told(text, question)] == [True, True]
    assert [right for _, right in told(text, question, once=True)] == [False, False]


def test_hostile_text_costs_nothing() -> None:
    for text in ("=" * 20000, "1+" * 20000 + "=1", "(" * 5000 + "1+1" + ")" * 5000 + "=2", "9" * 5000 + "*9=1"):
        assert len(find_steps(text, "1+1")) <= 20000
