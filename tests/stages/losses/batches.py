"""Naive responses as the tensors of a micro-batch: a prompt in front, padding behind, garbage outside the mask."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.parts.losses.advantages import group_advantages
from stages.parts.losses.algorithms import LossInputs, policy_loss
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.counts import BatchCounts, add_counts, count_batch
from stages.parts.losses.kl import kl_estimate
from tests.stages.losses.naive import Response

LIMIT = 11  # the length limit of a response, longer than any in these tests
PROMPT = 2
LEAST = {"grpo": {}, "dr_grpo": {}, "dapo": {}, "gspo": {}, "cispo": {"ratio_max": 1.2}, "rloo": {}, "reinforce_pp": {}}


def config(name: str, **knobs) -> AlgorithmConfig:
    return AlgorithmConfig(**{"name": name, "beta": 0.0, "epsilon": 0.2, **LEAST[name], **knobs})


def rollout_advantages(responses: list[Response], cfg: AlgorithmConfig) -> list[Tensor]:
    """A vector over each response's tokens."""
    kl_N = None
    if cfg.beta > 0 and cfg.kl_place == "reward":
        kl_N = [kl_estimate(cfg.kl_estimator, double(r.old), double(r.reference)) for r in responses]
    result = group_advantages(
        double([r.reward for r in responses]),
        torch.tensor([r.group for r in responses]),
        torch.ones(len(responses), dtype=torch.bool),
        cfg,
        kl_N=kl_N,
    )
    return [result.of_response(i, len(r.policy)) for i, r in enumerate(responses)]


def micro_batch(responses: list[Response], advantages: list[Tensor]) -> LossInputs:
    """Rows of one response each. Outside the mask there are NaN, -inf and huge numbers."""
    width = PROMPT + max(len(r.policy) for r in responses) + 1

    def rows(values: list[list[float]], outside: float) -> Tensor:
        tensor = torch.full((len(responses), width), outside, dtype=torch.float64)
        for row, value in enumerate(values):
            tensor[row, PROMPT : PROMPT + len(value)] = torch.as_tensor(value, dtype=torch.float64)
        return tensor

    return LossInputs(
        policy_logps_BT=rows([r.policy for r in responses], float("nan")).requires_grad_(),
        old_logps_BT=rows([r.old for r in responses], float("-inf")),
        advantages_BT=rows([a.tolist() for a in advantages], 1e30),
        mask_BT=rows([[1.0] * len(r.policy) for r in responses], 0.0),
        sampler_logps_BT=rows([r.sampler for r in responses], float("nan")),
        reference_logps_BT=rows([r.reference for r in responses], float("inf")),
        entropy_BT=rows([r.entropy for r in responses], float("nan")),
    )


def counts_of(parts: list[LossInputs]) -> BatchCounts:
    return add_counts(*(count_batch(part.mask_BT, LIMIT, part.segment_ids_BT) for part in parts))


def loss_and_gradient(
    responses: list[Response], cfg: AlgorithmConfig, parts: list[list[int]] | None = None, divide_again: bool = False
) -> tuple[float, list[list[float]]]:
    """Summed over the micro-batches `parts` (lists of responses). divide_again: the classic fault, planted."""
    parts = parts or [list(range(len(responses)))]
    advantages = rollout_advantages(responses, cfg)
    batches = [micro_batch([responses[i] for i in part], [advantages[i] for i in part]) for part in parts]
    counts = counts_of(batches)
    total, gradients = 0.0, [[0.0]] * len(responses)
    for part, batch in zip(parts, batches, strict=True):
        loss, _ = policy_loss(cfg, batch, counts)
        (loss / len(parts) if divide_again else loss).backward()
        total += loss.item()
        for row, i in enumerate(part):
            gradients[i] = batch.policy_logps_BT.grad[row, PROMPT : PROMPT + len(responses[i].policy)].tolist()
        assert batch.policy_logps_BT.grad[batch.mask_BT == 0].eq(0).all()
    return total, gradients


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flat(rows: list[list[float]]) -> Tensor:
    return double([value for row in rows for value in row])
