"""The step of logit distillation: against its formula, over every split, and with a teacher in pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.tracking import Metrics
from stages.distill.config import DistillConfig
from stages.distill.soft import soft_step
from stages.parts.losses.distillation import token_divergence
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.examples import Example
from stages.parts.policy.invariance import Task, all_splits, compare
from stages.parts.policy.model import Policy
from stages.parts.policy.reference import frozen
from stages.parts.policy.soft_targets import OnlineTargets, real_vocabulary
from stages.parts.policy.train_engine import TrainEngine, build_engine
from tests.stages.policy.tiny import ragged, tiny_policy

CFG = DistillConfig(
    kind="distill", seed=0, steps=3, max_tokens=96, optimizer=OptimizerConfig(max_grad_norm=0.5), dtype="float32",
    hard_weight=0.3, objective="jsd", temperature=2.0, jsd_weight=0.2,
)  # fmt: skip
TEACHERS: dict[tuple[str, int], OnlineTargets] = {}


def peaked(seed: int, **overrides) -> Policy:
    """An untrained model is flat: its embeddings, which are also its head, are made larger."""
    policy = tiny_policy(seed, **overrides)
    policy.model.get_input_embeddings().weight.data.mul_(20)
    return policy


def teacher_of(cfg: DistillConfig) -> OnlineTargets:
    """Another size, and eight padding rows that would dominate if they were tokens. As the engine has it: in pieces
    under ZeRO-3; one a process and engine."""
    key = (cfg.engine.kind, cfg.engine.zero_stage)
    if key not in TEACHERS:
        policy = peaked(7, hidden_size=48, vocab_size=272)
        policy.model.get_output_embeddings().weight.data[264:] *= 5
        TEACHERS[key] = OnlineTargets(frozen(policy, cfg, is_teacher=True), real_vocabulary(policy, make_policy(cfg)))
    return TEACHERS[key]


def make_policy(cfg: DistillConfig) -> Policy:
    return peaked(0)


def examples_of(step: int, count: int = 13) -> list[Example]:
    sequences, masks = ragged(count, seed=step)
    return [Example(ids, [bool(flag) for flag in mask]) for ids, mask in zip(sequences, masks, strict=True)]


def take_step(engine: TrainEngine, cfg: DistillConfig, step: int, rate: float, rank: int, n: int) -> Metrics:
    return soft_step(engine, examples_of(step)[rank::n], cfg, rate, teacher_of(cfg))


TASK = Task(CFG, make_policy, take_step)


def logits_of(policy: Policy, ids: list[int]) -> Tensor:
    return policy.model(input_ids=torch.tensor([ids])).logits[0, :-1]


def test_loss_and_gradient_are_those_of_the_formula():
    """Sequence by sequence, all logits at once, one mean over the supervised tokens at the end."""
    student, teacher = peaked(0), peaked(7)
    nll, soft = [], []
    for example in examples_of(0, 5):
        logits, reads = logits_of(student, example.ids), logits_of(teacher, example.ids)
        on = torch.tensor(example.mask[1:])
        labels = torch.tensor(example.ids[1:])
        nll.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none")[on])
        soft.append(token_divergence("jsd", reads, logits, temperature=2.0, jsd_weight=0.2)[on])
    loss = 0.3 * torch.cat(nll).mean() + 0.7 * 4.0 * torch.cat(soft).mean()
    loss.backward()
    expected = {name: param.grad.clone() for name, param in student.model.named_parameters()}
    cfg = replace(CFG, optimizer=OptimizerConfig(name="sgd", max_grad_norm=0.0))
    engine = build_engine(peaked(0), cfg, None, records=True)
    targets = OnlineTargets(frozen(teacher, cfg, is_teacher=True), 264)
    metrics = soft_step(engine, examples_of(0, 5), cfg, 0.0, targets)
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["train/nll"] == pytest.approx(float(torch.cat(nll).detach().mean()), rel=1e-5)
    assert metrics["train/divergence"] == pytest.approx(float(torch.cat(soft).detach().mean()), rel=1e-5)
    assert metrics["teacher/tokens"] == sum(len(example.ids) for example in examples_of(0, 5))
    for name, gradient in engine.gradients().items():
        assert torch.allclose(gradient, expected[name], rtol=1e-3, atol=1e-6), name


def test_a_teacher_like_the_student_leaves_nothing_to_learn():
    cfg = replace(CFG, hard_weight=0.0)
    engine = build_engine(peaked(0), cfg, None)
    metrics = soft_step(engine, examples_of(0), cfg, 0.0, OnlineTargets(frozen(peaked(0), cfg, is_teacher=True), 264))
    assert metrics["train/divergence"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/grad_norm"] == pytest.approx(0.0, abs=1e-4)


def test_micro_batches_and_packing_do_not_matter():
    for difference in compare(TASK, all_splits(packing=True, ranks=(), stages=())):
        assert difference.agrees, difference


def test_a_planted_fault_is_found():
    faulty = Task(CFG, make_policy, take_step, fault=True)
    assert all(d.gradient > 0.1 for d in compare(faulty, all_splits(packing=False, ranks=(), stages=())))


def test_two_ranks_equal_one_with_the_teacher_in_pieces():
    for difference in compare(TASK, all_splits(packing=False, ranks=(2,), stages=(3,))):
        assert difference.agrees, difference


@pytest.mark.parametrize("at_once", [264 * 3, 2**25])
def test_chunks_of_a_large_vocabulary_change_nothing(at_once):
    """Student and teacher are cut at the same places, forward and backward."""
    from stages.parts.policy.batch import pad_batch
    from stages.parts.policy.scoring import Scorer
    from stages.parts.policy.soft_targets import Divergence

    sequences, masks = ragged(7)
    student = peaked(0)
    batch = pad_batch(sequences, masks, 0, student.device)
    wanted = Divergence("reverse_kl")
    results = []
    for limit in (at_once, 2**25):
        student.model.zero_grad()
        seen = teacher_of(CFG).compare(batch, wanted)
        compared_BT = Scorer(student.model)(batch, 1.0, False, limit, seen)[3]
        compared_BT.sum().backward()
        results.append((compared_BT.detach(), [param.grad.clone() for param in student.model.parameters()]))
    (parts, part_grads), (whole, whole_grads) = results
    assert whole.abs().max() > 0.1 and torch.allclose(parts, whole, atol=1e-5)
    for one, other in zip(part_grads, whole_grads, strict=True):
        assert torch.allclose(one, other, atol=1e-4, rtol=1e-3)
