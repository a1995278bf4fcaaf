"""The pairs' update over micro-batches here; ranks and ZeRO stages by scripts/check_invariance.py and, on two real
ranks, by the slow test."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from scripts.check_invariance import make_policy, pair_step, with_value_head
from stages.base_model.config import ModelConfig
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.invariance import Task, all_splits, compare
from stages.reward_model.config import RewardModelConfig

MODEL = ModelConfig(source="scratch", hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate_size=64)
CONFIG = RewardModelConfig(seed=0, pairs_per_step=12, optimizer=OptimizerConfig(max_grad_norm=0.1))
TASK = Task(CONFIG, partial(with_value_head, partial(make_policy, MODEL, 0), body=True), pair_step)


def test_no_micro_batch_changes_it():
    for difference in compare(TASK, all_splits(packing=False, ranks=(), stages=())):
        assert difference.agrees, difference


def test_a_planted_fault_is_found():
    for difference in compare(replace(TASK, fault=True), all_splits(packing=False, ranks=(), stages=())):
        assert not difference.agrees


@pytest.mark.slow
def test_no_rank_and_no_zero_stage_changes_it():
    for difference in compare(TASK, all_splits(packing=False)):
        assert difference.agrees, difference
