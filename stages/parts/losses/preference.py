"""Bradley-Terry on pairs: the loss of a reward model (Christiano et al., arXiv:1706.03741; InstructGPT, 2203.02155).

    loss = 1/P * sum over pairs of  -log sigmoid(r_chosen - r_rejected)  +  centre * (r_chosen + r_rejected)^2

Differs from the textbook: P counts the pairs of the *global* batch, as in every loss here; and the second term
(arXiv:2312.09244, weight 0.01 there) keeps rewards around 0, which pairs alone leave open: they know differences only.
Suffix: P pairs of a micro-batch.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def bradley_terry_loss(
    chosen_P: Tensor, rejected_P: Tensor, pairs: float, centre_weight: float = 0.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """(this part's share of the loss, sums to be added over parts and divided by the pairs of the step).

    `pairs`: how many there are in the whole step, over all ranks and micro-batches.
    """
    margin_P = chosen_P - rejected_P
    nll_P = F.softplus(-margin_P)  # -log sigmoid, without overflow
    loss = (nll_P.sum() + centre_weight * (chosen_P + rejected_P).square().sum()) / pairs
    sums = {
        "loss": loss.detach() * pairs,
        "nll": nll_P.detach().sum(),
        "right": (margin_P.detach() > 0).sum(),
        "margin": margin_P.detach().sum(),
        "reward": (chosen_P + rejected_P).detach().sum() / 2,
    }
    return loss, sums
