"""Global denominators: how many responses and tokens the *whole* update is about.

What differs from the textbook: nothing is averaged over what happens to lie in one tensor. A mini-batch is cut into
micro-batches and spread over ranks; its counts are taken once, over all of them and after every masking decision
(unjudgeable, dropped, truncated), so that the parts of a loss can simply be added. A denominator counted before the
masks are final is the classic silent fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stages.parts.losses.sequences import sequence_sums


@dataclass(frozen=True)
class BatchCounts:
    """Numbers of one mini-batch, summed over all ranks and micro-batches."""

    sequences: float  # responses with at least one token in the mask
    tokens: float  # tokens in the mask
    length_limit: int  # the configured limit of a response, never the padded length (Dr. GRPO's constant)


def count_batch(mask_BT: Tensor, length_limit: int, segment_ids_BT: Tensor | None = None) -> BatchCounts:
    """Counts of one tensor; add those of all micro-batches and ranks with `add_counts`.

    segment_ids_BT: 1.. per sequence where rows are packed, 0 for padding; None: a row is a sequence.
    """
    lengths_BT = sequence_sums(mask_BT, segment_ids_BT)
    # 1 / length on each of its tokens adds up to one per sequence, packed or not
    share_BT = mask_BT / lengths_BT.where(lengths_BT > 0, 1.0)
    return BatchCounts(round(share_BT.double().sum().item()), mask_BT.double().sum().item(), length_limit)


def add_counts(*parts: BatchCounts) -> BatchCounts:
    """Counts of the union. The length limit must be one and the same."""
    limits = {part.length_limit for part in parts}
    if len(limits) != 1:
        raise ValueError(f"parts of one mini-batch disagree on the length limit: {sorted(limits)}")
    return BatchCounts(sum(part.sequences for part in parts), sum(part.tokens for part in parts), limits.pop())
