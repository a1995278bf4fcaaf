"""The math verifier against judged cases, its speed on plain answers, and what must not hurt it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.answers import extract_answer, last_box
from stages.parts.verifiers.math_answers import equal
from stages.parts.verifiers.math_process import ask_math_verify
from stages.parts.verifiers.rationals import rational
from stages.parts.verifiers.reward import judge

CASES = [json.loads(line) for line in Path("tests/data/math_answers.jsonl").read_text().splitlines()]


def problem(gold: str, verifier: str = "math") -> Problem:
    return Problem("p", "reasoning", "any", [{"role": "user", "content": "What is it?"}], gold, verifier)


@pytest.mark.parametrize("case", CASES, ids=[f"{case['why']}-{index}" for index, case in enumerate(CASES)])
def test_judged_cases(case):
    score = judge(problem(case["gold"]), case["response"], require_box=False)
    assert (None if score.value is None else bool(score.value)) == case["right"], score.reason


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("72", "72 apples", True),
        ("72", "7 8", False),
        ("50", "50\\%", False),
        ("50\\%", "50", False),
        ("0", "0.0", True),
        ("yes", "\\text{Yes}", True),
        ("Paris", "London", False),
        ("-\\frac{1}{2}", "-1/2", True),
        ("12", "12.0000001", False),
        ("\\sqrt{2}", "1.414", False),
        ("12", "9" * 5000, False),
        ("6:4", "3:2", True),
    ],
)
def test_equal(gold, answer, right):
    assert equal(gold, answer) is right


def test_boxes():
    assert last_box("\\boxed{\\frac{1}{2}} then \\fbox{a{b}c}") == ("a{b}c", False)
    assert last_box("\\boxed{\\{1,2\\}}") == ("\\{1,2\\}", False)
    assert last_box("\\boxed{1} \\boxed{2") == ("1", True)
    assert last_box("\\boxed{\\boxed{7}}") == ("7", False)


def test_fallback_needs_leave_and_a_finished_response():
    assert extract_answer("The total is 72").answer is None
    assert extract_answer("The total is 72", require_box=False).answer == "72"
    assert extract_answer("The total is 7", require_box=False, truncated=True).answer is None
    assert extract_answer("<answer>5</answer> of 9 #### 7", require_box=False).answer == "5"
    assert extract_answer("<think>\\boxed{3}</think>so it is").answer is None


def test_plain_answers_take_microseconds():
    row = problem("-12")
    began = time.perf_counter()
    for number in range(5000):
        judge(row, f"<think>4-1=3, 3-7=-4</think>\\boxed{{{number - 2500}}}")
    assert (time.perf_counter() - began) / 5000 < 200e-6


def test_a_bomb_is_bounded_killed_and_remembered_off_the_main_thread():
    verdicts = []

    def ask():
        verdicts.append(equal("\\sqrt{10}", "9^{9^{9^{9}}}"))
        began = time.perf_counter()
        verdicts.append(equal("\\sqrt{10}", "9^{9^{9^{9}}}"))
        verdicts.append(time.perf_counter() - began < 0.1)
        verdicts.append(equal("\\sqrt{8}", "2\\sqrt{2}"))  # the pool works on

    thread = threading.Thread(target=ask)
    began = time.perf_counter()
    thread.start()
    thread.join()
    assert verdicts == [False, False, True, True]
    assert time.perf_counter() - began < 60


def test_unjudgeable_gold_is_none_even_for_an_equal_answer():
    assert equal("???not math???", "???not math???") is None
    assert judge(problem("???"), "").value is None


def test_worker_errors_are_verdicts():
    assert ask_math_verify("\\sqrt{2}", "\\frac{1}{0}") is False


def test_rational_reads_no_monsters():
    assert rational("1e999999999") is None
    assert rational("1/0") is None
    assert rational("9" * 100) is None
