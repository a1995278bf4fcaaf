"""Sequences of token ids as tensors: padded on the right, or packed several to a row.

Differs from the textbook: there is no attention mask and padding is never recognised by its id. A row is right-padded,
so causal attention keeps real tokens from padding by itself; a packed row restarts its positions, from which
transformers builds the block-diagonal mask. Everything is token-aligned: column t is about token t.
Suffixes: B rows, T columns, S sequences, L columns of one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.parts.policy.distributed import all_max


@dataclass
class TokenBatch:
    """Rows of tokens. `rows` and `starts` say where each of the S sequences lies."""

    input_ids_BT: Tensor  # long
    position_ids_BT: Tensor  # long; restarts at 0 with every sequence
    segment_ids_BT: Tensor  # long; 0 padding, 1.. one per sequence in the row
    mask_BT: Tensor  # float; 1: a token whose log-prob carries loss. Never 1 on the first token of a sequence
    packed: bool  # some row holds more than one sequence
    places: list[tuple[int, int, int]]  # of each sequence: row, first column, length

    @property
    def packed_segments_BT(self) -> Tensor | None:
        """For losses that add up over sequences; None: a row is a sequence."""
        return self.segment_ids_BT if self.packed else None


def pad_batch(sequences: list[list[int]], masks: list[list[float]], pad_id: int, device: torch.device) -> TokenBatch:
    """One sequence a row, in the given order. No sequences: one row of nothing, for a rank that has run out."""
    return _lay_out(sequences, masks, [[index] for index in range(len(sequences))], pad_id, device)


def pack_batch(
    sequences: list[list[int]], masks: list[list[float]], pad_id: int, device: torch.device, row_tokens: int | None
) -> TokenBatch:
    """Several sequences a row of at most `row_tokens` columns (a longer sequence gets a row of its own length). None:
    one a row, as `pad_batch` does."""
    if row_tokens is None:
        return pad_batch(sequences, masks, pad_id, device)
    rows = pack_rows([len(sequence) for sequence in sequences], row_tokens)
    return _lay_out(sequences, masks, rows, pad_id, device)


def pack_rows(lengths: list[int], row_tokens: int) -> list[list[int]]:
    """First-fit decreasing: indices of the sequences of each row. Deterministic."""
    rows: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((row for row, left in enumerate(free) if left >= lengths[index]), None)
        if place is None:
            rows.append([index])
            free.append(row_tokens - lengths[index])
        else:
            rows[place].append(index)
            free[place] -= lengths[index]
    return rows


def _lay_out(
    sequences: list[list[int]], masks: list[list[float]], rows: list[list[int]], pad_id: int, device: torch.device
) -> TokenBatch:
    height = max(1, len(rows))
    # Two columns at least: a batch of nothing still makes one prediction (of weight 0), so that its forward and
    # backward meet the other ranks' collectives.
    width = max([2, *(sum(len(sequences[index]) for index in row) for row in rows)])
    ids_BT = [[pad_id] * width for _ in range(height)]
    positions_BT = [[0] * width for _ in range(height)]
    segments_BT = [[0] * width for _ in range(height)]
    mask_BT = [[0.0] * width for _ in range(height)]
    places = [(0, 0, 0)] * len(sequences)
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, start=1):
            length = len(sequences[index])
            if len(masks[index]) != length:
                raise ValueError(f"sequence {index} has {length} tokens and a mask of {len(masks[index])}")
            end = start + length
            ids_BT[row][start:end] = sequences[index]
            positions_BT[row][start:end] = range(length)
            segments_BT[row][start:end] = [segment] * length
            mask_BT[row][start:end] = [0.0, *masks[index][1:]]  # nothing predicts the first token
            places[index] = (row, start, length)
            start = end
    return TokenBatch(
        input_ids_BT=torch.tensor(ids_BT, dtype=torch.long, device=device),
        position_ids_BT=torch.tensor(positions_BT, dtype=torch.long, device=device),
        segment_ids_BT=torch.tensor(segments_BT, dtype=torch.long, device=device),
        mask_BT=torch.tensor(mask_BT, dtype=torch.float32, device=device),
        packed=any(len(members) > 1 for members in rows),
        places=places,
    )


def microbatches(lengths: list[int], tokens_per_microbatch: int) -> list[list[int]]:
    """Indices of each micro-batch: sequences of like length together, rows x longest <= tokens_per_microbatch (a longer
    sequence stands alone). Deterministic; how it cuts never changes the result, only rounding.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * longest <= tokens_per_microbatch:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches


def aligned_microbatches(
    lengths: list[int], tokens_per_microbatch: int, row_tokens: int | None = None
) -> list[list[int]]:
    """`microbatches` with the same number on every rank (collective): ZeRO-2 and 3 communicate in each backward, so a
    rank that has fewer adds empty ones (`pad_batch([], [], ...)`). row_tokens: of rows that `pack_batch` will make."""
    rows = [[index] for index in range(len(lengths))] if row_tokens is None else pack_rows(lengths, row_tokens)
    cut = microbatches([sum(lengths[index] for index in row) for row in rows], tokens_per_microbatch)
    batches = [[index for row in members for index in rows[row]] for members in cut]
    return batches + [[] for _ in range(all_max(len(batches)) - len(batches))]
