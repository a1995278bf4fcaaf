"""Rows as tensors: what a forward pass reads, and per-response lists on the columns they are about.

Suffixes: B rows of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stages.parts.experience.collect import Row
from stages.parts.experience.config import ExperienceConfig
from stages.parts.losses.counts import BatchCounts
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pad_batch
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.model import Policy


def score_rows(
    rows: list[Row], policy: Policy, score: Callable[[TokenBatch], Tensor], tokens_per_microbatch: int
) -> list[tuple[Row, list[float]]]:
    """`score` (a number a token) on every row's response; a collective, so ranks without rows take part."""
    results = []
    for indices in aligned_microbatches([row.length for row in rows], tokens_per_microbatch):
        chosen = [rows[index] for index in indices]
        values_BT = score(batch_of(chosen, policy))
        results += [(row, of_response(values_BT[place], row)) for place, row in enumerate(chosen)]
    return results


def count_rows(rows: list[Row], cfg: ExperienceConfig) -> BatchCounts:
    """Denominators over all ranks, after masking."""
    sequences, tokens = all_sum([len(rows), sum(sum(row.rollout.mask) for row in rows)])
    return BatchCounts(sequences, tokens, cfg.max_response_tokens)


def batch_of(rows: list[Row], policy: Policy) -> TokenBatch:
    """Prompts, and what an engine wrote into a response (a budget's stop text), are read and carry no loss."""
    sequences = [row.rollout.prompt_ids + row.rollout.response_ids for row in rows]
    masks = [[0.0] * len(row.rollout.prompt_ids) + row.rollout.mask for row in rows]
    return pad_batch(sequences, masks, policy.pad_id, policy.device)


def of_response(values_T: Tensor, row: Row) -> list[float]:
    """The part of a padded row that is about the response."""
    start = len(row.rollout.prompt_ids)
    return values_T[start : start + len(row.rollout.response_ids)].tolist()


def aligned(rows: list[Row], values: Sequence[list[float] | None], like_BT: Tensor) -> Tensor:
    """Per-response lists on their columns of the padded batch, zeros elsewhere."""
    filled_BT = torch.zeros(like_BT.shape, dtype=torch.float32)
    for place, (row, numbers) in enumerate(zip(rows, values, strict=True)):
        assert numbers is not None
        start = len(row.rollout.prompt_ids)
        filled_BT[place, start : start + len(numbers)] = torch.tensor(numbers)
    return filled_BT.to(like_BT.device)
