"""From token losses to one number: every reduction is a weight on a token, and the loss is a plain sum.

    loss = sum over all ranks, micro-batches and tokens of weight * token_loss

| reduction           | weight of a token              | who                                                     |
|---------------------|--------------------------------|---------------------------------------------------------|
| `sequence_mean`     | 1 / (its length * sequences)   | GRPO, GSPO                                              |
| `token_mean`        | 1 / tokens                     | DAPO, CISPO, REINFORCE++                                |
| `constant_length`   | 1 / (length limit * sequences) | Dr. GRPO: the configured limit, never the padded length |
| `sequence_sum_mean` | 1 / sequences                  | RLOO: the log-prob of the whole response                |

What differs from the textbook: the denominators are global (`BatchCounts`), so any split into micro-batches or ranks
gives the same gradient. DAPO's Eq. 8 and CISPO's objective print the token mean inside one group, under an expectation
over prompts; DAPO's released code takes it over the mini-batch, and so does `token_mean`. The two are equal where
the groups of a mini-batch have equally many tokens.
Shapes: B rows, T tokens. A row is one sequence, or several where `segment_ids_BT` says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.sequences import sequence_sums

REDUCTIONS = ("sequence_mean", "token_mean", "constant_length", "sequence_sum_mean")


def token_weights(reduction: str, mask_BT: Tensor, counts: BatchCounts, segment_ids_BT: Tensor | None = None) -> Tensor:
    """Weights [B, T]; zero where the mask is. An empty mini-batch (no tokens anywhere) weighs nothing, never NaN.

    mask_BT: float, 1 on a token that carries loss. Raises ValueError on an unknown reduction.
    """
    if counts.tokens == 0 or counts.sequences == 0:
        return torch.zeros_like(mask_BT)
    if reduction == "sequence_mean":
        lengths_BT = sequence_sums(mask_BT, segment_ids_BT)
        return mask_BT / (lengths_BT.where(lengths_BT > 0, 1.0) * counts.sequences)
    if reduction == "token_mean":
        return mask_BT / counts.tokens
    if reduction == "constant_length":
        return mask_BT / (counts.length_limit * counts.sequences)
    if reduction == "sequence_sum_mean":
        return mask_BT / counts.sequences
    raise ValueError(f"unknown reduction {reduction!r}")
