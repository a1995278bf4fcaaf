"""Suite numbers of a few rows, counted by hand."""

from __future__ import annotations

import pytest

from stages.parts.evaluation.suites import problem_results, suite_metrics

PARTS = {"accuracy": 1.0, "format": 1.0, "language": 0.5}


def row(problem, sample, right, suite="reasoning", family="sums", tokens=10, truncated=False, score=1.0):
    return {
        "problem_id": problem, "suite": suite, "family": family, "sample_index": sample, "prompt": "?",
        "text": "<think>1+1=2</think>\\boxed{2}" if right else "\\boxed{3}", "tokens": tokens, "truncated": truncated,
        "score": score, "right": right, "parts": PARTS,
    }  # fmt: skip


ROWS = [
    row("a", 0, True, tokens=20), row("a", 1, False),
    row("b", 0, False), row("b", 1, False, truncated=True),
    row("c", 0, True, family="products", tokens=30), row("c", 1, True, family="products", tokens=40),
    row("d", 0, True, family="products"), row("d", 1, False, family="products", score=None),
    row("e", 0, True, suite="general", family="spelling"), row("e", 1, True, suite="general", family="spelling"),
]  # fmt: skip


def test_problem_results_leave_out_what_cannot_be_judged():
    assert [(r["problem_id"], r["n"], r["c"]) for r in problem_results(ROWS)] == [
        ("a", 2, 1), ("b", 2, 0), ("c", 2, 2), ("d", 1, 1), ("e", 2, 2),
    ]  # fmt: skip


def test_suite_metrics():
    metrics = suite_metrics(ROWS, [1, 2])
    assert metrics["reasoning/problems"] == 4
    assert metrics["reasoning/pass@1"] == pytest.approx((0.5 + 0 + 1 + 1) / 4)
    assert metrics["reasoning/pass@2"] == pytest.approx((1 + 0 + 1) / 3)  # d has one judged response
    assert metrics["reasoning/pass@1_low"] <= metrics["reasoning/pass@1"] <= metrics["reasoning/pass@1_high"]
    assert metrics["reasoning/sums/pass@1"] == pytest.approx(0.25)
    assert metrics["reasoning/products/pass@1"] == pytest.approx(1.0)
    assert metrics["reasoning/length"] == pytest.approx((20 + 10 + 10 + 10 + 30 + 40 + 10 + 10) / 8)
    assert metrics["reasoning/length_right"] == pytest.approx((20 + 30 + 40 + 10) / 4)
    assert metrics["reasoning/length_wrong"] == pytest.approx(10)
    assert metrics["reasoning/truncated"] == pytest.approx(1 / 8)
    assert metrics["reasoning/reasoned"] == pytest.approx(4 / 8)
    assert metrics["reasoning/language"] == pytest.approx(0.5)
    assert metrics["reasoning/unjudged"] == 1
    assert metrics["general/pass@1"] == 1.0
    assert "general/length_wrong" not in metrics
