"""The command that people run on their own configuration, and every reduction and algorithm behind it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pipeline.compose import compose
from scripts.check_invariance import main, make_policy, ppo_step, rl_step, task_of, with_value_head
from stages.base_model.config import ModelConfig
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.reductions import REDUCTIONS
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.invariance import Task, all_splits, compare
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig
from stages.rl.config import RLConfig

MODEL = ModelConfig(source="scratch", hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate_size=64)
GRPO = AlgorithmConfig(name="grpo", beta=0.04, epsilon=0.2)
ALGORITHMS = [
    *(replace(GRPO, reduction=name) for name in REDUCTIONS),
    replace(GRPO, name="dr_grpo", beta=0.0, std="none", reduction="constant_length"),
    replace(GRPO, name="dapo", beta=0.0, epsilon_high=0.28, reduction="token_mean"),
    replace(GRPO, name="gspo", beta=0.0, epsilon=3e-4, epsilon_high=4e-4),
    replace(GRPO, name="cispo", beta=0.0, ratio_max=5.0, reduction="token_mean"),
    replace(GRPO, name="rloo", kl_place="reward", kl_estimator="k1", reduction="sequence_sum_mean"),
    replace(GRPO, name="reinforce_pp", kl_estimator="k2", reduction="token_mean"),
    replace(GRPO, importance_cap=2.0, entropy_bonus=0.01, dual_clip=3.0),
]


# All at once, a sequence a micro-batch, packed rows; in slow tests also ranks 1 and 2 and ZeRO 0 to 3.
SPLITS = [split for split in all_splits(packing=True, ranks=(), stages=()) if split.tokens_per_microbatch != 256]


def rl_task(algorithm: AlgorithmConfig, **settings) -> Task:
    cfg = RLConfig(kind="rl", seed=0, G=4, algorithm=algorithm, optimizer=OptimizerConfig(max_grad_norm=0.1))
    return Task(cfg, partial(make_policy, MODEL, 0), rl_step, **settings)


def distillation_task(stage: str) -> Task:
    small = ["student.hidden_size=32", "student.layers=1", "student.intermediate_size=64"]
    return task_of(compose(["pipeline=distillation_study", *small]), stage)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda row: f"{row.name}-{row.reduction}-{row.beta}")
def test_no_split_changes_an_rl_update(algorithm):
    for difference in compare(rl_task(algorithm), SPLITS):
        assert difference.agrees, difference


@pytest.mark.parametrize("stage", ["logit_distillation", "on_policy_distillation"])
def test_no_split_changes_an_update_of_distillation(stage):
    for difference in compare(distillation_task(stage), SPLITS):
        assert difference.agrees, difference


@pytest.mark.slow
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ranks_and_zero_do_not_change_an_rl_update(reduction):
    for difference in compare(rl_task(replace(GRPO, reduction=reduction)), all_splits(packing=True)):
        assert difference.agrees, difference


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["logit_distillation", "on_policy_distillation"])
def test_ranks_and_zero_do_not_change_an_update_of_distillation(stage):
    for difference in compare(distillation_task(stage), all_splits(packing=True)):
        assert difference.agrees, difference


@pytest.mark.slow
def test_ranks_and_zero_do_not_change_an_update_of_ppo():
    algorithm = PPOAlgorithmConfig(beta=0.01, epsilon=0.2)
    cfg = PPOConfig(kind="ppo", seed=0, G=4, algorithm=algorithm, optimizer=OptimizerConfig(max_grad_norm=0.1))
    task = Task(cfg, partial(with_value_head, partial(make_policy, MODEL, 0)), ppo_step)
    for difference in compare(task, all_splits(packing=True)):
        assert difference.agrees, difference


def test_a_planted_fault_is_found():
    for difference in compare(rl_task(GRPO, fault=True), SPLITS[:2]):  # where packed, there is one micro-batch
        assert difference.gradient > 0.1 and not difference.agrees


def test_the_command(monkeypatch, capsys):
    arguments = ["--stage", "cold_start", "--ranks", "0", "pipeline=r1_style", "experiment=smoke"]
    arguments += ["model.hidden_size=32", "model.layers=1", "model.intermediate_size=64"]
    monkeypatch.setattr("sys.argv", ["check_invariance.py", *arguments])
    assert main() == 0
    assert "the update is the same for every split" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["check_invariance.py", "--plant-fault", *arguments])
    assert main() == 1
    assert "the update depends on: micro-batches of 256 tokens" in capsys.readouterr().out


def test_a_stage_that_trains_nothing_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["check_invariance.py", "--stage", "problems", "pipeline=r1_style"])
    assert main() == 2
    assert "write one of cold_start, reasoning_rl" in capsys.readouterr().err
