"""The monitor of gaming, on responses whose numbers are known; and problems that nobody scores."""

from __future__ import annotations

import math

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.experience.gaming import check_parts, gaming_metrics
from stages.parts.rollouts.types import Problem


def row(problem: str, right: bool, suite: str = "helpful", **parts: float) -> dict:
    return {"suite": suite, "problem_id": problem, "right": right, "parts": {"accuracy": float(right), **parts}}


def test_by_hand():
    """Pairs of a right and a wrong response to one problem: p 0.9 > 0.5 and 0.9 > 0.7, q 0.2 < 0.8, r a tie:
    (1 + 1 + 0 + 0.5) / 4. Scores: (0.9 + 0.5 + 0.7 + 0.2 + 0.8 + 0.6 + 0.6) / 7 = 4.3 / 7; 3 of 7 are right."""
    rows = [
        row("p", True, helpfulness=0.9), row("p", False, helpfulness=0.5), row("p", False, helpfulness=0.7),
        row("q", True, helpfulness=0.2), row("q", False, helpfulness=0.8),
        row("r", True, helpfulness=0.6), row("r", False, helpfulness=0.6),
        row("s", True, suite="reasoning"),
    ]  # fmt: skip
    metrics = gaming_metrics(rows, [problem("helpfulness")])
    assert {key.split("/")[1] for key in metrics} == {"helpful"}
    assert metrics["preference/helpful/rule_is_rewarded"] == 0.0
    assert gaming_metrics(rows, [problem("accuracy", "helpfulness")])["preference/helpful/rule_is_rewarded"] == 1.0
    assert metrics["preference/helpful/agreement"] == 0.625
    assert metrics["preference/helpful/score"] == pytest.approx(4.3 / 7)
    assert metrics["preference/helpful/rule"] == pytest.approx(3 / 7)
    logits = [math.log(p / (1 - p)) for p in (0.9, 0.5, 0.7, 0.2, 0.8, 0.6, 0.6)]
    assert metrics["preference/helpful/logit"] == pytest.approx(sum(logits) / 7)


def test_certainty_stays_finite_and_nothing_to_compare_is_nan():
    metrics = gaming_metrics([row("p", True, helpfulness=1.0), row("p", True, helpfulness=0.0)], [])
    assert metrics["preference/helpful/logit"] == pytest.approx(0.0, abs=1e-3)
    assert math.isnan(metrics["preference/helpful/agreement"])


def test_a_suite_without_an_independent_rule_has_none():
    odd = row("p", False, helpfulness=0.4)
    del odd["parts"]["accuracy"]
    assert gaming_metrics([odd], []) == {}


def problem(*parts: str) -> Problem:
    return Problem("p", "helpful", "x", [{"role": "user", "content": "?"}], "", metadata={"scored_by": list(parts)})


def test_parts_that_nobody_scores_fail_before_training():
    check_parts({"helpful": [problem("accuracy", "format")]}, None)
    with pytest.raises(StageFailed, match=r"helpfulness, which a reward model tells: wire inputs\.reward_model"):
        check_parts({"helpful": [problem("format", "helpfulness")]}, None)
    with pytest.raises(StageFailed, match="'beauty': `scored_by` knows accuracy"):
        check_parts({"helpful": [problem("beauty")]}, None)
