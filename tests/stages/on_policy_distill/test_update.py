"""The update: against its formula, over every split and with a teacher in pieces, and with a reward beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.tracking import Metrics
from stages.on_policy_distill.config import OnPolicyDistillConfig
from stages.on_policy_distill.update import Reading, assign_rewards, readings_of, update
from stages.parts.experience.collect import Brief, Experience, Row
from stages.parts.losses.distillation import token_divergence
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.examples import Example
from stages.parts.policy.invariance import Split, Task, compare
from stages.parts.policy.model import Policy
from stages.parts.policy.reference import frozen
from stages.parts.policy.soft_targets import OnlineTargets
from stages.parts.policy.train_engine import TrainEngine, build_engine
from stages.parts.rollouts.types import Problem, Rollout
from tests.stages.on_policy_distill.world import ALGORITHM
from tests.stages.policy.tiny import ragged, tiny_policy

CFG = OnPolicyDistillConfig(
    seed=0, steps=3, G=1, max_response_tokens=40, jsd_weight=0.2, reward_weight=0.7, dtype="float32",
    algorithm=replace(ALGORITHM, entropy_bonus=0.01), optimizer=OptimizerConfig(max_grad_norm=0.5),
)  # fmt: skip
SGD = replace(CFG, optimizer=OptimizerConfig(name="sgd", max_grad_norm=0.0))
TEACHERS: dict[tuple[str, int], OnlineTargets] = {}


def peaked(seed: int, **overrides) -> Policy:
    policy = tiny_policy(seed, **overrides)
    policy.model.get_input_embeddings().weight.data.mul_(20)
    return policy


def teacher_of(cfg: OnPolicyDistillConfig) -> OnlineTargets:
    """In pieces under ZeRO-3; one a process and engine."""
    key = (cfg.engine.kind, cfg.engine.zero_stage)
    if key not in TEACHERS:
        TEACHERS[key] = OnlineTargets(frozen(peaked(7, hidden_size=48), cfg, is_teacher=True), 264)
    return TEACHERS[key]


def make_policy(cfg: OnPolicyDistillConfig) -> Policy:
    return peaked(0)


def made_up_readings(step: int, own: int = 9, data: int = 4) -> list[Reading]:
    """Ragged samples with advantages of either sign, one of which cannot be judged, and conversations."""
    sequences, masks = ragged(own + data, seed=step)
    generator = torch.Generator().manual_seed(step)
    rows = []
    for index in range(own):
        start = masks[index].index(1.0)
        size = len(sequences[index]) - start
        logps = (-5.5 + 0.3 * torch.randn(size, generator=generator)).tolist()
        rollout = Rollout(f"p{index}", 0, sequences[index][:start], sequences[index][start:], logps, False)
        row = Row(index, Problem(f"p{index}", "reasoning", "made_up", [], ""), rollout)
        row.old_logps = [logp + 0.1 for logp in logps]
        row.advantages = [[1.5, -0.5, -1.0][index % 3]] * size if index != 4 else []
        rows.append(row)
    examples = [Example(sequences[own + i], [bool(flag) for flag in masks[own + i]]) for i in range(data)]
    return readings_of(rows, examples)


def take_step(
    engine: TrainEngine, cfg: OnPolicyDistillConfig, step: int, rate: float, rank: int, ranks: int
) -> Metrics:
    return update(made_up_readings(step)[rank::ranks], engine, teacher_of(cfg), cfg, rate)


TASK = Task(CFG, make_policy, take_step)


def gradients(cfg: OnPolicyDistillConfig, readings: list[Reading]) -> tuple[dict[str, torch.Tensor], Metrics]:
    engine = build_engine(peaked(0), cfg, None, records=True)
    metrics = update(readings, engine, teacher_of(cfg), cfg, 0.0)
    return engine.gradients(), metrics


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_the_formula(reduction):
    """Sequence by sequence, all logits at once; the prompt carries no loss, samples and conversations count alike."""
    readings, student, teacher = made_up_readings(0), peaked(0), peaked(7, hidden_size=48)
    parts = []
    for reading in readings:
        ids = torch.tensor([reading.ids])
        logits, reads = (model(input_ids=ids).logits[0, :-1] for model in (student.model, teacher.model))
        parts.append(token_divergence("jsd", reads, logits, jsd_weight=0.2)[torch.tensor(reading.mask[1:]) > 0])
    mean = torch.cat(parts).mean() if reduction == "token_mean" else torch.stack([part.mean() for part in parts]).mean()
    mean.backward()
    got, metrics = gradients(replace(SGD, reward_weight=0.0, reduction=reduction), readings)
    assert metrics["train/loss"] == pytest.approx(float(mean.detach()), rel=1e-5)
    assert metrics["train/own_divergence"] == pytest.approx(float(torch.cat(parts[:9]).detach().mean()), rel=1e-5)
    assert metrics["train/data_divergence"] == pytest.approx(float(torch.cat(parts[9:]).detach().mean()), rel=1e-5)
    assert metrics["teacher/tokens"] == sum(len(reading.ids) for reading in readings)
    for name, param in student.model.named_parameters():
        assert torch.allclose(got[name], param.grad, rtol=1e-3, atol=1e-6), name


def test_a_reward_adds_its_own_gradient_in_its_weight():
    readings = made_up_readings(0)
    none, one, two = (gradients(replace(SGD, reward_weight=w), readings)[0] for w in (0.0, 1.0, 2.0))
    for name in none:
        assert torch.allclose(two[name] - none[name], 2 * (one[name] - none[name]), rtol=1e-3, atol=1e-6), name
    assert max(float((one[name] - none[name]).abs().max()) for name in none) > 1e-4


def test_what_cannot_be_judged_is_in_no_denominator_of_the_reward():
    """The fifth sample is without advantages: as far as the reward goes it is not there."""
    cfg = replace(SGD, reward_weight=1.0)
    readings = made_up_readings(0, data=0)
    judged = [reading for reading in readings if reading.is_rewarded]
    assert len(judged) == len(readings) - 1
    loss = gradients(cfg, readings)[1]["train/reward_loss"]
    assert loss == pytest.approx(gradients(cfg, judged)[1]["train/reward_loss"], rel=1e-5)


def test_a_group_that_differs_only_in_a_penalty_of_length_has_no_advantages_where_such_groups_are_dropped():
    """DAPO's eq. 11 asks for the score, before any rule about length."""
    rewards = {0: [1.0, 0.5], 1: [1.0, 0.0]}  # group 0: both are right, one is too long
    rows, briefs = [], []
    for group, values in rewards.items():
        for index, reward in enumerate(values):
            rollout = Rollout(f"p{group}", index, [5, 6], [7, 8], [-1.0, -1.0], False)
            rows.append(Row(group, Problem(f"p{group}", "reasoning", "made_up", [], ""), rollout))
            briefs.append(Brief(group, index, 1.0 if group == 0 else reward, reward, 2, False, {}))
    cfg = replace(CFG, G=2, algorithm=replace(ALGORITHM, zero_variance="drop"))
    engine = build_engine(peaked(0), cfg, None, records=True)
    assign_rewards(Experience(rows, briefs, briefs, [[0, 1]]), engine, cfg)
    assert [bool(row.advantages) for row in rows] == [False, False, True, True]


def test_a_step_of_nothing_is_survived():
    engine = build_engine(peaked(0), CFG, None)
    assert update([], engine, teacher_of(CFG), CFG, 1e-3) == {"train/empty_step": 1.0}


def test_micro_batches_do_not_matter():
    splits = [
        Split("one micro-batch"),
        Split("100 tokens", tokens_per_microbatch=100),
        Split("a row", tokens_per_microbatch=1),
    ]
    for difference in compare(TASK, splits):
        assert difference.agrees, difference


def test_a_planted_fault_is_found():
    splits = [Split("one micro-batch"), Split("a row", tokens_per_microbatch=1)]
    assert all(d.gradient > 0.1 for d in compare(Task(CFG, make_policy, take_step, fault=True), splits))


def test_two_ranks_equal_one_with_the_teacher_in_pieces():
    (difference,) = compare(TASK, [Split("one"), Split("ZeRO-3, 2 ranks", 2, "deepspeed", 3, 100)])
    assert difference.agrees, difference
