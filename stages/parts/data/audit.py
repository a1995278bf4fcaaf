"""What the loss sees: the tokens of a step with their masks, and whether training could learn what it should.

Every check is a public failure: an all-zero mask that looked healthy, prompts in the loss, an end token that no row
supervises (the model never stops), a doubled BOS, a `<think>` outside the loss, "truncated" responses that did end.
A *fault* means that nothing, or the wrong thing, would be learned; a *note* is for people to judge. The sft and rl
stages run the same checks on their first step. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import StageFailed
from stages.parts.data.template import THINK_CLOSE, THINK_OPEN, render_prompt

PROBE = [{"role": "user", "content": "1 + 1"}]


@dataclass
class Row:
    """One sequence on its way into the loss."""

    ids: list[int]
    mask: list[bool]  # the tokens that carry loss
    advantages: list[float] | None = None  # one a token, 0 outside the mask; None: supervised, every token counts 1
    truncated: bool = False  # a response that hit the limit, as the rollout says
    label: str = ""

    @property
    def learns(self) -> list[int]:
        """Positions that carry loss; nothing predicts the first token."""
        return [t for t, on in enumerate(self.mask) if on and t > 0]


@dataclass
class Audit:
    """Counts over the rows of a step, what is wrong with them, and what is merely worth knowing."""

    rows: int
    tokens: int
    supervised: int = 0
    ended: int = 0  # rows whose last supervised token is an end token
    cut: int = 0  # rows that are truncated or stop without an end token
    doubled_bos: int = 0
    without_bos: int = 0
    thinking: int = 0  # rows with a whole think block in the loss
    broken_thinking: int = 0  # rows whose supervised text opens a block that it never closes, or the reverse
    unsupervised_opening: int = 0  # rows whose think block opens outside the loss and closes inside
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        """For metrics.jsonl."""
        return {
            "audit/supervised_share": self.supervised / max(self.tokens, 1),
            "audit/ended_share": self.ended / max(self.rows, 1),
            "audit/cut_share": self.cut / max(self.rows, 1),
            "audit/thinking_share": self.thinking / max(self.rows, 1),
        }


def check_first_step(rows: list[Row], tokenizer: Any, end_ids: Collection[int], *, pieces: bool = False) -> Audit:
    """`audit` for a stage that is about to train. Raises StageFailed with every fault in one line."""
    result = audit(rows, tokenizer, end_ids, pieces=pieces)
    if result.faults:
        raise StageFailed("; ".join(result.faults))
    return result


def audit(rows: list[Row], tokenizer: Any, end_ids: Collection[int], *, pieces: bool = False) -> Audit:
    """Check rows against the tokenizer and the end tokens of the model that will be trained on them.

    pieces: rows may be parts of longer conversations, so that a few of them need not hold a beginning or an end.
    """
    result = Audit(len(rows), sum(len(row.ids) for row in rows))
    prefilled = THINK_OPEN in tokenizer.decode(render_prompt(tokenizer, PROBE))[-len(THINK_OPEN) - 2 :]
    for row in rows:
        _count(result, row, tokenizer, set(end_ids))
    if not result.supervised:
        result.faults.append("no token carries loss: nothing would be learned")
        return result
    _judge_sampler(result, rows, set(end_ids))
    _judge_beginnings(result, tokenizer)
    _judge_advantages(result, rows)
    if not pieces:
        _judge_masks(result, rows)
        _judge_ends(result, rows)
        _judge_thinking(result, prefilled, demonstrations=all(row.advantages is None for row in rows))
    return result


def _count(result: Audit, row: Row, tokenizer: Any, end_ids: set[int]) -> None:
    learns = row.learns
    result.supervised += len(learns)
    ended = bool(learns) and row.ids[learns[-1]] in end_ids
    result.ended += ended
    result.cut += row.truncated or not ended
    if tokenizer.bos_token_id is not None:
        bos = [token == tokenizer.bos_token_id for token in row.ids[:2]]
        result.doubled_bos += bos == [True, True]
        result.without_bos += not any(bos[:1])
    inside = tokenizer.decode([row.ids[t] for t in learns])
    opens, closes = inside.count(THINK_OPEN), inside.count(THINK_CLOSE)
    outside = tokenizer.decode([token for token, on in zip(row.ids, row.mask, strict=True) if not on])
    opened_outside = outside.count(THINK_OPEN) > outside.count(THINK_CLOSE)
    result.thinking += opens > 0 and opens == closes
    result.unsupervised_opening += opened_outside and closes > opens
    result.broken_thinking += opens != closes and not (opened_outside and closes == opens + 1) and ended


def _judge_masks(result: Audit, rows: list[Row]) -> None:
    if all(len(row.learns) == len(row.ids) - 1 for row in rows):
        result.faults.append("every token of every row carries loss, prompts too: the mask marks no assistant")
    empty = sum(not row.learns for row in rows)
    if empty:
        result.notes.append(f"{empty} of {len(rows)} rows carry no loss")


def _judge_ends(result: Audit, rows: list[Row]) -> None:
    if result.ended:
        if result.cut:
            result.notes.append(f"{result.cut} of {len(rows)} rows stop without an end token")
    elif all(row.truncated for row in rows):
        result.notes.append("every response is truncated: no end token was sampled (raise max_response_tokens)")
    else:
        result.faults.append("no row ends with a supervised end token: the model would never learn to stop")


def _judge_sampler(result: Audit, rows: list[Row], end_ids: set[int]) -> None:
    contradictions = sum(row.truncated and row.ids[-1] in end_ids for row in rows)
    if contradictions:
        result.faults.append(
            f"{contradictions} responses count as truncated but end with an end token: the sampler's set of end tokens"
            " is not the model's"
        )


def _judge_beginnings(result: Audit, tokenizer: Any) -> None:
    if result.doubled_bos:
        result.faults.append(
            f"{result.doubled_bos} rows begin with two BOS tokens: template and tokenizer both add one"
        )
    if result.without_bos and getattr(tokenizer, "add_bos_token", False):
        result.notes.append(f"{result.without_bos} rows have no BOS, which this tokenizer adds by default")


def _judge_thinking(result: Audit, prefilled: bool, demonstrations: bool) -> None:
    if result.unsupervised_opening and not prefilled:
        result.faults.append(
            f"in {result.unsupervised_opening} rows {THINK_OPEN} is outside the loss and {THINK_CLOSE} inside, though"
            " the prompt does not open the block: the model would never learn to"
        )
    if result.broken_thinking:
        text = f"{result.broken_thinking} of {result.rows} rows end with a think block that does not open and close"
        # What a policy sampled is its own business; what it is shown must not all be broken.
        (result.faults if demonstrations and result.broken_thinking == result.rows else result.notes).append(text)


def _judge_advantages(result: Audit, rows: list[Row]) -> None:
    values = [row.advantages[t] for row in rows if row.advantages is not None for t in row.learns]
    if not values:
        return
    if not all(math.isfinite(value) for value in values):
        result.faults.append("an advantage is not a number")
    elif not any(values):
        result.notes.append("every advantage is 0: all groups are constant, only a KL term would train")
