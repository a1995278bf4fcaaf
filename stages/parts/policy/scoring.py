"""Log-probabilities of given tokens: one forward pass, and the head only where a token matters.

Differs from the textbook in three places: positions whose mask is 0 never reach the head (prompts are most of a
batch); the softmax is in float32 whatever the model computes in; and with a large vocabulary at most LOGITS_AT_ONCE
logits exist at a time, recomputed in the backward pass (4 x 1,024 tokens x 151,936 would be 2.5 GB, three times).
A model with a value head (value_head.py) also gives the value of the state that each token was chosen in. Where whole
distributions are needed (distillation), a `Compare` sees them chunk by chunk, under the same limit.
N: positions that are scored, in the order of batch.mask_BT[:, 1:]; C of them make a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pipeline.artifacts import StageFailed
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import LOGITS_AT_ONCE

# (logits_CV of the chunk, which of the N positions it holds) -> one number a position [C], or several [C, M]. It is
# called once more for every chunk in the backward pass, and must give the same again.
Compare = Callable[[Tensor, slice], Tensor]


@dataclass
class TokenStats:
    """Token-aligned: logps_BT[b, t] = log p(token t | the tokens before it in its sequence); 0 where mask_BT is 0."""

    logps_BT: Tensor
    entropy_BT: Tensor | None  # nats, of the distribution that token t was drawn from
    values_BT: Tensor | None = None  # V(tokens before t), of a model with a value head
    compared_BT: Tensor | None = None  # what a `Compare` gave: [B, T], or [B, T, M]


class Scorer(torch.nn.Module):
    """The model behind one `forward` that does everything a training step needs, so that hooks of data-parallel engines
    (ZeRO-3 gathers parameters in them) see one ordinary module."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        # Kept out of the module tree: the same modules must not be registered twice.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        head = base.get_output_embeddings()
        self._parts = (base.get_decoder() if head is not None else base, head)  # no head: a critic, a body alone
        self._value_head = (getattr(base, "value_head", None),)
        self.splits = head is None or _head_is_last(model, *self._parts)
        if self._value_head[0] is not None and not self.splits:
            raise StageFailed("this architecture's logits need more than its last hidden state: write critic=separate")

    @property
    def head(self) -> torch.nn.Module | None:
        """From hidden states to logits; None: a critic."""
        return self._parts[1]

    @torch.no_grad()
    def logits(self, hidden_CH: Tensor) -> Tensor:
        """Of any part of what `before_head` gave."""
        return self.head(hidden_CH) if self.head is not None and self.splits else hidden_CH

    def forward(
        self,
        batch: TokenBatch,
        temperature: float,
        entropy: bool,
        logits_at_once: int = LOGITS_AT_ONCE,
        compare: Compare | None = None,
        before_head: bool = False,
        reads: tuple[str, ...] = ("logps",),
    ) -> tuple[Tensor | None, ...]:
        """The fields of TokenStats, in order; with before_head the hidden_NH alone, for whoever holds the head."""
        where_N, nothing = _positions(batch)
        if before_head:
            return (self._last(batch, where_N),)
        targets_N = batch.input_ids_BT[:, 1:].reshape(-1)[where_N]
        scores = self._score(batch, where_N, targets_N, temperature, entropy, logits_at_once, compare, reads)
        if nothing:
            scores = tuple(score_N * 0.0 if score_N is not None else None for score_N in scores)
        # Tensors, not a dataclass: ZeRO-3 looks for them in what a module returns.
        return tuple(_put(score_N, where_N, batch.mask_BT) if score_N is not None else None for score_N in scores)

    def _score(
        self,
        batch: TokenBatch,
        where_N: Tensor,
        targets_N: Tensor,
        temperature: float,
        entropy: bool,
        at_once: int,
        compare: Compare | None,
        reads: tuple[str, ...],
    ) -> tuple[Tensor | None, ...]:
        """Log-probs, entropy, values, comparison of the N positions."""
        head = self.head
        hidden_NH = self._last(batch, where_N)
        values_N = self._value_head[0](hidden_NH) if self._value_head[0] is not None else None
        if head is None:
            return torch.zeros(len(hidden_NH), device=hidden_NH.device), None, values_N, None

        def score(hidden_CH: Tensor, targets_C: Tensor, start: int) -> tuple[Tensor | None, ...]:
            logits_CV = head(hidden_CH) if self.splits else hidden_CH
            scored = logps_of_logits(logits_CV, targets_C, temperature, entropy, reads)
            return *scored, compare(logits_CV, slice(start, start + len(targets_C))) if compare is not None else None

        rows = max(1, at_once // _vocabulary(self.model))
        if not self.splits or where_N.numel() <= rows:
            logps_N, entropy_N, compared_N = score(hidden_NH, targets_N, 0)
            return logps_N, entropy_N, values_N, compared_N
        # Not reentrant: the head's weight must get its gradient once, as a sum over chunks, or ZeRO-3 reduces it twice.
        parts = [
            checkpoint(score, hidden_CH, targets_C, index * rows, use_reentrant=False)
            for index, (hidden_CH, targets_C) in enumerate(
                zip(hidden_NH.split(rows), targets_N.split(rows), strict=True)
            )
        ]
        logps_N, entropy_N, compared_N = (_joined(column) for column in zip(*parts, strict=True))
        return logps_N, entropy_N, values_N, compared_N

    def _last(self, batch: TokenBatch, where_N: Tensor) -> Tensor:
        """What stands before the head at the N positions; where the head is not last, the logits themselves."""
        inputs = {"input_ids": batch.input_ids_BT, "use_cache": False}
        if batch.packed:  # restarting positions are how transformers knows packed rows; it keeps their attention apart
            inputs["position_ids"] = batch.position_ids_BT
        if not self.splits:
            return _select(self.model(**inputs).logits, where_N)
        return _select(self._parts[0](**inputs).last_hidden_state, where_N)


def logps_of_logits(
    logits_NV: Tensor, targets_N: Tensor, temperature: float, entropy: bool, reads: tuple[str, ...] = ("logps",)
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature) at the targets, and the entropy, both in float32. What no loss reads has no
    graph: a chunk that is computed again would keep what such a gradient needs until the last chunk is done, four or
    eight bytes for each of all logits."""
    with torch.set_grad_enabled(bool(reads) and torch.is_grad_enabled()):
        logits_NV = logits_NV.float()
        if temperature != 1.0:
            logits_NV = logits_NV / temperature
        if not entropy:
            return -F.cross_entropy(logits_NV, targets_N, reduction="none"), None
        all_logps_NV = F.log_softmax(logits_NV, dim=-1)
        with torch.set_grad_enabled("entropy" in reads and torch.is_grad_enabled()):
            entropy_N = -(all_logps_NV.exp() * all_logps_NV).sum(-1)
        return all_logps_NV.gather(1, targets_N[:, None]).squeeze(1), entropy_N


def _positions(batch: TokenBatch) -> tuple[Tensor, bool]:
    """Flat index into [B, T-1] of what is scored (the predicting column stands one before the predicted token), and
    whether there is nothing. Then it is still one prediction, of weight 0: the collectives of the other ranks expect
    this rank."""
    where_N = batch.mask_BT[:, 1:].reshape(-1).nonzero().squeeze(1)
    if where_N.numel():
        return where_N, False
    return torch.zeros(1, dtype=torch.long, device=batch.mask_BT.device), True


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _select(values_BTX: Tensor, where_N: Tensor) -> Tensor:
    """The predicting columns; column T-1 predicts nothing in the batch and is left out."""
    return values_BTX[:, :-1].reshape(-1, values_BTX.shape[-1])[where_N]


def _put(values_N: Tensor, where_N: Tensor, like_BT: Tensor) -> Tensor:
    """Back to [B, T] (or [B, T, M]), moved one column right: from the predicting position to the predicted token."""
    rows, columns = like_BT.shape
    several = values_N.shape[1:]
    flat = torch.zeros(rows * (columns - 1), *several, dtype=values_N.dtype, device=values_N.device)
    put = flat.index_put((where_N,), values_N).view(rows, columns - 1, *several)
    return F.pad(put, (*[0, 0] * len(several), 1, 0))


def _vocabulary(model: torch.nn.Module) -> int:
    return model.config.get_text_config().vocab_size


@torch.no_grad()
def _head_is_last(model: torch.nn.Module, decoder: torch.nn.Module, head: torch.nn.Module) -> bool:
    """Whether logits are head(decoder(x)) and nothing more. Some architectures scale or cap logits afterwards; those go
    through their whole forward."""
    device = head.weight.device
    probe = torch.arange(4, device=device)[None] % _vocabulary(model)
    whole = model(input_ids=probe, use_cache=False).logits
    split = head(decoder(input_ids=probe, use_cache=False).last_hidden_state)
    return whole.shape == split.shape and torch.allclose(whole.float(), split.float(), rtol=1e-3, atol=1e-4)
