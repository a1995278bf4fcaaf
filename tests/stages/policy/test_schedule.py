"""The learning rate is a pure function of the step."""

from __future__ import annotations

import pytest

from stages.parts.policy.config import OptimizerConfig, TrainedStageConfig
from stages.parts.policy.schedule import learning_rate


def rates(steps: int = 10, **settings) -> list[float]:
    cfg = TrainedStageConfig(kind="x", steps=steps, learning_rate=1.0, optimizer=OptimizerConfig(**settings))
    return [learning_rate(step, cfg) for step in range(steps)]


def test_constant_after_a_warm_up():
    assert rates(warmup_fraction=0.4) == pytest.approx([0.25, 0.5, 0.75, 1.0] + [1.0] * 6)


def test_linear_to_a_fraction():
    # 1 - 0.9 * s/10
    assert rates(schedule="linear", final_fraction=0.1) == pytest.approx([1 - 0.09 * step for step in range(10)])


def test_cosine_to_a_fraction():
    got = rates(schedule="cosine", final_fraction=0.1)
    assert got[0] == 1.0
    assert got[5] == pytest.approx(0.55)  # half way: 0.1 + 0.9 * 0.5
    assert got == sorted(got, reverse=True) and got[-1] > 0.1


def test_no_step_is_wasted_on_a_rate_of_zero():
    for schedule in ("constant", "linear", "cosine"):
        assert min(rates(steps=3, schedule=schedule, warmup_fraction=0.5)) > 0
