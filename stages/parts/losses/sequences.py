"""Sums over sequences, whether a row holds one (padded) or several (packed)."""

from __future__ import annotations

from torch import Tensor


def sequence_sums(values_BT: Tensor, segment_ids_BT: Tensor | None = None) -> Tensor:
    """Sum over each sequence, written on each of its tokens: [B, T].

    segment_ids_BT: long; 1.. per sequence of a packed row, 0 for padding. None: a row is one sequence.
    """
    if segment_ids_BT is None:
        return values_BT.sum(dim=-1, keepdim=True).expand_as(values_BT)
    segments = int(segment_ids_BT.max()) + 1
    sums_BS = values_BT.new_zeros(values_BT.shape[0], segments).scatter_add(1, segment_ids_BT, values_BT)
    return sums_BS.gather(1, segment_ids_BT)


def sequence_means(values_BT: Tensor, mask_BT: Tensor, segment_ids_BT: Tensor | None = None) -> Tensor:
    """Mean over the masked tokens of each sequence, written on each of its tokens; 0 for a sequence without any."""
    lengths_BT = sequence_sums(mask_BT, segment_ids_BT)
    return sequence_sums(values_BT * mask_BT, segment_ids_BT) / lengths_BT.where(lengths_BT > 0, 1.0)
