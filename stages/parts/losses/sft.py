"""Supervised loss: the negative log-likelihood of the tokens that the mask names.

What differs from the textbook: the mean is over the supervised tokens of the *global* batch. A mean per micro-batch,
averaged, weighs the tokens of short batches more; that is the fault most frameworks shipped once.
"""

from __future__ import annotations

from torch import Tensor

from stages.parts.losses.counts import BatchCounts
from stages.parts.losses.reductions import token_weights


def sft_loss(
    logps_BT: Tensor,
    mask_BT: Tensor,
    counts: BatchCounts,
    reduction: str = "token_mean",
    segment_ids_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(loss, sums): this part's share of the loss, and `nll` and `tokens` to be added over parts and divided."""
    mask_BT = mask_BT.to(logps_BT.dtype)
    nll_BT = -logps_BT.where(mask_BT > 0, 0.0)
    loss = (token_weights(reduction, mask_BT, counts, segment_ids_BT) * nll_BT).sum()
    sums = {"loss": loss.detach(), "nll": (nll_BT * mask_BT).sum().detach(), "tokens": mask_BT.sum()}
    return loss, sums
