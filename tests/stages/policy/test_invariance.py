"""The update does not depend on how it is computed (pitfall 1), for supervised training; RL's own stands with it."""

from __future__ import annotations

import pytest

from pipeline.tracking import Metrics
from stages.parts.policy.config import OptimizerConfig, SupervisedStageConfig
from stages.parts.policy.examples import Example
from stages.parts.policy.invariance import Task, all_splits, compare
from stages.parts.policy.model import Policy
from stages.parts.policy.supervised import supervised_step
from stages.parts.policy.train_engine import TrainEngine
from tests.stages.policy.tiny import ragged, tiny_policy


def make_policy(cfg: SupervisedStageConfig) -> Policy:
    return tiny_policy()


def take_step(engine: TrainEngine, cfg: SupervisedStageConfig, step: int, rate: float, rank: int, n: int) -> Metrics:
    sequences, masks = ragged(13, seed=step)
    examples = [Example(ids, [bool(flag) for flag in mask]) for ids, mask in zip(sequences, masks, strict=True)]
    return supervised_step(engine, examples[rank::n], cfg, rate)


CFG = SupervisedStageConfig(kind="sft", seed=0, steps=3, max_tokens=96, optimizer=OptimizerConfig(max_grad_norm=0.5))
TASK = Task(CFG, make_policy, take_step)


def test_micro_batches_and_packing_do_not_matter():
    for difference in compare(TASK, all_splits(packing=True, ranks=(), stages=())):
        assert difference.agrees, difference


def test_a_planted_fault_is_found():
    faulty = Task(CFG, make_policy, take_step, fault=True)
    differences = compare(faulty, all_splits(packing=False, ranks=(), stages=()))
    assert all(difference.gradient > 0.1 for difference in differences)
    assert all(difference.adam < difference.gradient / 10 for difference in differences)  # what Adam hides


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_on_one_rank_equals_torch(stage):
    for difference in compare(TASK, all_splits(packing=False, ranks=(1,), stages=(stage,))):
        assert difference.agrees, difference


def test_two_ranks_equal_one():
    splits = all_splits(packing=False, ranks=(2,), stages=(1, 2, 3))
    for difference in compare(TASK, splits):
        assert difference.agrees, difference
