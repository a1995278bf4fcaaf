"""From a teacher's next-token distribution to a student's loss.

With p the teacher's distribution and q the student's, both at temperature T:

    forward_kl   KL(p || q)           reverse_kl   KL(q || p)
    jsd          w KL(p || m) + (1 - w) KL(q || m),   m = w p + (1 - w) q        (GKD, 2306.13649; w is its beta)
    hard and soft   hard_weight * NLL + (1 - hard_weight) * T^2 * divergence     (1503.02531)

As w goes to 0, jsd / w goes to KL(p || q), and as w goes to 1, jsd / (1 - w) goes to KL(q || p). At 0 and 1 themselves
the sum is 0 and teaches nothing, so there `jsd` is the divergence of that limit: it is larger by 1 / w than nearby.

What differs from the textbook: divergences are per token and unreduced, so that `token_weights` gives them the same
global denominators as any other loss. Teacher and student of one family often share a tokenizer and differ in padded
embedding rows (Qwen2.5: 151,936 and 152,064): `real_vocab` cuts both to the tokens that exist. A teacher of which only
the k likeliest tokens were stored is compared over k + 1 outcomes, the last of which is "any other token": nothing is
renormalised away, and by the data-processing inequality no divergence comes out larger than it is.
Shapes: any leading dimensions, V vocabulary or K stored tokens last; the result has the leading dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    teacher_logps = log_softmax(teacher_logits, temperature, real_vocab).detach()
    return divergence(kind, teacher_logps, log_softmax(student_logits, temperature, real_vocab), jsd_weight)


def stored_divergence(
    kind: str,
    top_ids: Tensor,
    teacher_logps: Tensor,
    student_logits: Tensor,
    *,
    temperature: float = 1.0,
    jsd_weight: float = 0.5,
    real_vocab: int | None = None,
) -> Tensor:
    """`token_divergence` from a stored teacher: its K likeliest tokens and the rest as one outcome.

    top_ids: [..., K], distinct. teacher_logps: [..., K + 1] at `temperature`, the last one of all other tokens together
    (`bucketed` of the teacher's logits). K must leave at least one token over.
    """
    student_logps = bucketed(student_logits, top_ids, temperature, real_vocab)
    return divergence(kind, teacher_logps.to(student_logps.dtype).detach(), student_logps, jsd_weight)


def bucketed(logits: Tensor, top_ids: Tensor, temperature: float = 1.0, real_vocab: int | None = None) -> Tensor:
    """Log-probs [..., K + 1] of the tokens `top_ids` and, last, of all others together."""
    logps = log_softmax(logits, temperature, real_vocab)
    others = logps.scatter(-1, top_ids, -math.inf).logsumexp(dim=-1, keepdim=True)
    return torch.cat([logps.gather(-1, top_ids), others], dim=-1)


def divergence(kind: str, teacher_logps: Tensor, student_logps: Tensor, jsd_weight: float = 0.5) -> Tensor:
    """Of two distributions given by their log-probs, nats. ValueError on an unknown kind."""
    if kind == "forward_kl" or (kind == "jsd" and jsd_weight == 0.0):
        return _kl(teacher_logps, student_logps)
    if kind == "reverse_kl" or (kind == "jsd" and jsd_weight == 1.0):
        return _kl(student_logps, teacher_logps)
    if kind == "jsd":
        mixture_logps = torch.logaddexp(teacher_logps + math.log(jsd_weight), student_logps + math.log1p(-jsd_weight))
        teacher_part, student_part = _kl(teacher_logps, mixture_logps), _kl(student_logps, mixture_logps)
        return jsd_weight * teacher_part + (1.0 - jsd_weight) * student_part
    raise ValueError(f"unknown divergence {kind!r}")


def hard_and_soft(nll: Tensor, soft: Tensor, *, temperature: float, hard_weight: float) -> Tensor:
    """Token losses: hard_weight * NLL (temperature 1) + (1 - hard_weight) * T^2 * divergence (temperature T).

    T^2, because the gradient of the divergence shrinks with it: the balance of the two parts stays what it was.
    """
    return hard_weight * nll + (1.0 - hard_weight) * temperature**2 * soft


def log_softmax(logits: Tensor, temperature: float = 1.0, real_vocab: int | None = None) -> Tensor:
    """At a temperature, over the tokens that exist, in fp32 at least."""
    logits = logits[..., :real_vocab]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits / temperature).log_softmax(dim=-1)


def _kl(p_logps: Tensor, q_logps: Tensor) -> Tensor:
    return (p_logps.exp() * (p_logps - q_logps)).sum(dim=-1)
