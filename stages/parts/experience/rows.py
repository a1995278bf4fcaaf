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
from stages.parts.policy.batch import TokenBatch, aligned_microbatches, pack_batch
from stages.parts.policy.distributed import all_sum
from stages.parts.policy.model import Policy


def score_rows(
    rows: list[Row], policy: Policy, score: Callable[[TokenBatch], Tensor], cfg: ExperienceConfig
) -> list[tuple[Row, list[float]]]:
    """`score` (a number a token) on every row's response; a collective, so ranks without rows take part."""
    results = []
    for chosen, batch in row_batches(rows, policy, cfg):
        values_BT = score(batch)
        results += [(row, of_response(values_BT, batch, place, row)) for place, row in enumerate(chosen)]
    return results


def row_batches(rows: list[Row], policy: Policy, cfg: ExperienceConfig) -> list[tuple[list[Row], TokenBatch]]:
    """The rows of each micro-batch, as many micro-batches on every rank. Packed rows are as wide as the longest."""
    width = max([2, *(row.length for row in rows)]) if cfg.packing else None
    cut = aligned_microbatches([row.length for row in rows], cfg.tokens_per_microbatch, width)
    return [(chosen, batch_of(chosen, policy, width)) for chosen in ([rows[at] for at in members] for members in cut)]


def count_rows(rows: list[Row], cfg: ExperienceConfig) -> BatchCounts:
    """Denominators over all ranks, after masking."""
    sequences, tokens = all_sum([len(rows), sum(sum(row.rollout.mask) for row in rows)])
    return BatchCounts(sequences, tokens, cfg.max_response_tokens)


def batch_of(rows: list[Row], policy: Policy, row_tokens: int | None = None) -> TokenBatch:
    """Prompts, and what an engine wrote into a response (a budget's stop text), are read and carry no loss."""
    sequences = [row.rollout.prompt_ids + row.rollout.response_ids for row in rows]
    masks = [[0.0] * len(row.rollout.prompt_ids) + row.rollout.mask for row in rows]
    return pack_batch(sequences, masks, policy.pad_id, policy.device, row_tokens)


def of_response(values_BT: Tensor, batch: TokenBatch, place: int, row: Row) -> list[float]:
    """The part that is about the response of `row`, which is the batch's sequence `place`."""
    line, columns = _response(batch, place, row)
    return values_BT[line, columns].tolist()


def aligned(rows: Sequence[Row | None], values: Sequence[list[float] | None], batch: TokenBatch) -> Tensor:
    """Per-response lists on their columns of the batch, zeros elsewhere and for sequences that are no row's."""
    filled_BT = torch.zeros(batch.mask_BT.shape, dtype=torch.float32)
    for place, (row, numbers) in enumerate(zip(rows, values, strict=True)):
        if row is not None:
            assert numbers is not None
            line, columns = _response(batch, place, row)
            filled_BT[line, columns] = torch.tensor(numbers)
    return filled_BT.to(batch.mask_BT.device)


def _response(batch: TokenBatch, place: int, row: Row) -> tuple[int, slice]:
    line, start, length = batch.places[place]
    return line, slice(start + len(row.rollout.prompt_ids), start + length)
