"""Divergences once more as plain loops over Python floats with gradients by hand, to 1e-8; and stored teachers."""

from __future__ import annotations

import math
import random

import pytest
import torch

from stages.parts.losses.distillation import bucketed, hard_and_soft, stored_divergence, token_divergence

CASES = [("forward_kl", 0.5), ("reverse_kl", 0.5), *(("jsd", w) for w in (0.0, 0.1, 0.5, 0.9, 1.0))]
TEACHER_ROWS, STUDENT_ROWS, TOKENS = 9, 8, 7  # embedding rows, of which the first seven are tokens


def softmax(logits: list[float], temperature: float) -> list[float]:
    scaled = [x / temperature for x in logits]
    weights = [math.exp(x - max(scaled)) for x in scaled]
    return [w / sum(weights) for w in weights]


def naive(kind: str, p: list[float], q: list[float], w: float) -> tuple[float, list[float]]:
    """The divergence, and its derivative by each q_v as if they were free; the softmax comes on top."""
    m = [w * a + (1 - w) * b for a, b in zip(p, q, strict=True)]
    if kind == "forward_kl" or (kind == "jsd" and w == 0):
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)), [-a / b for a, b in zip(p, q, strict=True)]
    if kind == "reverse_kl" or (kind == "jsd" and w == 1):
        return sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)), [
            math.log(b / a) + 1 for a, b in zip(p, q, strict=True)
        ]
    value = sum(w * a * math.log(a / c) + (1 - w) * b * math.log(b / c) for a, b, c in zip(p, q, m, strict=True))
    # d/dq [w p log(p/m) + (1-w) q log(q/m)] with dm/dq = 1-w: the two terms of m cancel to 1-w against the q's own
    return value, [(1 - w) * math.log(b / c) for b, c in zip(q, m, strict=True)]


def naive_gradient(slopes: list[float], q: list[float], temperature: float) -> list[float]:
    """Through q = softmax(logits / T): dq_v/dz_u = q_v (1[u = v] - q_u) / T."""
    mean = sum(s * b for s, b in zip(slopes, q, strict=True))
    return [b * (s - mean) / temperature for s, b in zip(slopes, q, strict=True)]


def made_up_logits(seed: int, rows: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, 2) for _ in range(rows)]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
@pytest.mark.parametrize(("kind", "weight"), CASES)
def test_value_and_gradient(kind, weight, temperature):
    for seed in range(5):
        teacher, student = made_up_logits(seed, TEACHER_ROWS), made_up_logits(100 + seed, STUDENT_ROWS)
        p, q = softmax(teacher[:TOKENS], temperature), softmax(student[:TOKENS], temperature)
        value, slopes = naive(kind, p, q, weight)
        expected = [*naive_gradient(slopes, q, temperature), 0.0]  # a padding row has no part in it
        logits = torch.tensor(student, dtype=torch.float64, requires_grad=True)
        reads = torch.tensor(teacher, dtype=torch.float64, requires_grad=True)
        got = token_divergence(kind, reads, logits, temperature=temperature, jsd_weight=weight, real_vocab=TOKENS)
        got.backward()
        assert got.item() == pytest.approx(value, abs=1e-8)
        assert logits.grad.tolist() == pytest.approx(expected, abs=1e-8)
        assert reads.grad is None  # the teacher learns nothing


@pytest.mark.parametrize(("kind", "weight"), CASES)
def test_hard_and_soft(kind, weight):
    """h * NLL at temperature 1 + (1 - h) * T^2 * divergence at T; d NLL / dz_u = q_u - 1[u = label]."""
    hard_weight, temperature, label = 0.3, 2.0, 4
    teacher, student = made_up_logits(1, TOKENS), made_up_logits(2, TOKENS)
    value, slopes = naive(kind, softmax(teacher, temperature), softmax(student, temperature), weight)
    soft = naive_gradient(slopes, softmax(student, temperature), temperature)
    plain = softmax(student, 1.0)
    expected = [
        hard_weight * (plain[u] - (u == label)) + (1 - hard_weight) * temperature**2 * soft[u] for u in range(TOKENS)
    ]
    logits = torch.tensor(student, dtype=torch.float64, requires_grad=True)
    divergence = token_divergence(
        kind, torch.tensor(teacher, dtype=torch.float64), logits, temperature=temperature, jsd_weight=weight
    )
    loss = hard_and_soft(-logits.log_softmax(-1)[label], divergence, temperature=temperature, hard_weight=hard_weight)
    loss.backward()
    nll = -math.log(plain[label])
    assert loss.item() == pytest.approx(hard_weight * nll + (1 - hard_weight) * temperature**2 * value, abs=1e-8)
    assert logits.grad.tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl"])
def test_the_limits_of_jsd(kind):
    """jsd / w -> forward KL as w -> 0; jsd / (1 - w) -> reverse KL as w -> 1 (GKD's beta)."""
    teacher, student = (torch.tensor(made_up_logits(seed, TOKENS), dtype=torch.float64) for seed in (3, 4))
    near = 1e-6
    weight = near if kind == "forward_kl" else 1 - near
    got = token_divergence("jsd", teacher, student, jsd_weight=weight) / near
    assert got.item() == pytest.approx(token_divergence(kind, teacher, student).item(), rel=1e-4)


def test_an_unknown_divergence_is_named():
    with pytest.raises(ValueError, match="hellinger"):
        token_divergence("hellinger", torch.zeros(3), torch.zeros(3))


def stored(teacher: torch.Tensor, k: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    ids = teacher[..., :TOKENS].topk(k, dim=-1).indices
    return ids, bucketed(teacher, ids, temperature, TOKENS)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("kind", "weight"), CASES)
def test_a_stored_teacher(kind, weight, temperature):
    """With all tokens but one kept nothing is lost; with fewer the divergence comes out smaller, never larger."""
    torch.manual_seed(0)
    teacher = torch.randn(6, TEACHER_ROWS, dtype=torch.float64) * 2
    student = torch.randn(6, STUDENT_ROWS, dtype=torch.float64, requires_grad=True)
    settings = {"temperature": temperature, "jsd_weight": weight, "real_vocab": TOKENS}
    full = token_divergence(kind, teacher, student, **settings)
    gradient = torch.autograd.grad(full.sum(), student)[0]
    before = torch.zeros(6, dtype=torch.float64)
    for k in range(1, TOKENS):
        got = stored_divergence(kind, *stored(teacher, k, temperature), student, **settings)
        assert (got <= full + 1e-12).all() and (got >= before - 1e-12).all()
        before = got.detach()
    assert (got - full).abs().max() < 1e-12
    assert (torch.autograd.grad(got.sum(), student)[0] - gradient).abs().max() < 1e-12


def test_buckets_hold_all_of_the_probability():
    logits = torch.randn(3, TEACHER_ROWS, dtype=torch.float64)
    ids, logps = stored(logits, 2, 1.0)
    probabilities = logits[..., :TOKENS].softmax(-1)
    assert logps.exp().sum(-1).tolist() == pytest.approx([1.0] * 3)
    rest = 1 - probabilities.gather(-1, ids).sum(-1)
    assert logps[..., -1].exp().tolist() == pytest.approx(rest.tolist())
