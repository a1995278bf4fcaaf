"""From a teacher's logits to a student's loss.

With p the teacher's next-token distribution and q the student's, both at temperature T:

    forward   KL(p || q)           reverse   KL(q || p)
    jsd       w KL(p || m) + (1 - w) KL(q || m),   m = w p + (1 - w) q        (GKD, 2306.13649)
    hard and soft   hard_weight * NLL + (1 - hard_weight) * T^2 * KL(p || q)   (1503.02531)

What differs from the textbook: divergences are per token and unreduced, so that `token_weights` gives them the same
global denominators as any other loss. Teacher and student of one family often share a tokenizer and differ in padded
embedding rows (Qwen2.5: 151,936 and 152,064): `real_vocab` cuts both to the tokens that exist.
Shapes: any leading dimensions, V vocabulary last; the result has the leading dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIVERGENCES = ("forward", "reverse", "jsd")


def token_divergence(
    kind: str,
    teacher_logits: Tensor,
    student_logits: Tensor,
    *,
    temperature: float = 1.0,
    jsd_weight: float = 0.5,
    real_vocab: int | None = None,
) -> Tensor:
    """Divergence of each position, nats, without the T^2. Computed in fp32 at least. ValueError on an unknown kind."""
    teacher_logps = _log_softmax(teacher_logits, temperature, real_vocab).detach()
    student_logps = _log_softmax(student_logits, temperature, real_vocab)
    if kind == "forward":
        return _kl(teacher_logps, student_logps)
    if kind == "reverse":
        return _kl(student_logps, teacher_logps)
    if kind == "jsd":
        mixture_logps = torch.logaddexp(teacher_logps + math.log(jsd_weight), student_logps + math.log1p(-jsd_weight))
        teacher_part, student_part = _kl(teacher_logps, mixture_logps), _kl(student_logps, mixture_logps)
        return jsd_weight * teacher_part + (1.0 - jsd_weight) * student_part
    raise ValueError(f"unknown divergence {kind!r}")


def hard_and_soft(
    teacher_logits: Tensor,
    student_logits: Tensor,
    labels: Tensor,
    *,
    temperature: float,
    hard_weight: float,
    real_vocab: int | None = None,
) -> Tensor:
    """Token losses: hard_weight * NLL(label), at temperature 1, + (1 - hard_weight) * T^2 * KL(p || q)."""
    student_logps = _log_softmax(student_logits, 1.0, real_vocab)
    hard = -student_logps.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    soft = token_divergence("forward", teacher_logits, student_logits, temperature=temperature, real_vocab=real_vocab)
    return hard_weight * hard + (1.0 - hard_weight) * temperature**2 * soft


def _log_softmax(logits: Tensor, temperature: float, real_vocab: int | None) -> Tensor:
    logits = logits[..., :real_vocab]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits / temperature).log_softmax(dim=-1)


def _kl(p_logps: Tensor, q_logps: Tensor) -> Tensor:
    return (p_logps.exp() * (p_logps - q_logps)).sum(dim=-1)
