"""A thinking budget: once so many tokens stand in the think block, the engine writes a stop text and closes it.

Qwen3 (arXiv:2505.09388, section 4.3): the model is cut short and answers from the thinking that is there. It was never
trained on the stop text, and is not here: these tokens are the engine's, `Rollout.forced` names them, and they carry no
loss (design rule 4). Rows of a batch differ in where they are: outside, inside, being closed.

R rows of the batch, N rows of one call, S tokens of the stop text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.artifacts import StageFailed
from stages.parts.data.template import THINK_CLOSE, THINK_OPEN
from stages.parts.rollouts.config import SamplingConfig, room_faults

PROMPT_TAIL = 4  # tokens at the end of a prompt in which a template may have opened the block


@dataclass(frozen=True)
class Stop:
    """A budget in token ids."""

    budget: int
    open_id: int
    close_id: int
    text_ids: list[int]  # what is written: the stop text, `</think>`, and what stands behind that in it

    def opens(self, prompt: list[int]) -> bool:
        """Whether a prompt ends inside a think block. What a user wrote further up opens none."""
        tail = prompt[-PROMPT_TAIL:]
        return self.open_id in tail and self.close_id not in tail


def stop_of(tokenizer: Any, sampling: SamplingConfig, end_ids: frozenset[int]) -> Stop | None:
    """None where there is no budget. Raises StageFailed where the tags are no single tokens, or no room is left."""
    if sampling.thinking_budget is None:
        return None
    tags = [_ids(tokenizer, tag) for tag in (THINK_OPEN, THINK_CLOSE)]
    if any(len(ids) != 1 for ids in tags):
        raise StageFailed(f"a thinking budget needs {THINK_OPEN} and {THINK_CLOSE} as single tokens of the tokenizer")
    (open_id,), (close_id,) = tags
    text = sampling.stop_text
    text_ids = _ids(tokenizer, text if THINK_CLOSE in text else text + THINK_CLOSE)
    if text_ids.count(close_id) != 1 or open_id in text_ids or end_ids & set(text_ids):
        raise StageFailed(f"stop_text {text!r} must close the think block once, and neither open one nor end the turn")
    for fault in room_faults("thinking_budget", sampling.thinking_budget, sampling.max_response_tokens, len(text_ids)):
        raise StageFailed(f"{fault.key} {fault.problem}: {fault.remedy}")
    return Stop(sampling.thinking_budget, open_id, close_id, text_ids)


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class BudgetState:
    """Where every row of a batch stands."""

    def __init__(self, stop: Stop, rows: int, columns: int, device: torch.device):
        self.stop = stop
        self.inside_R = torch.zeros(rows, dtype=torch.bool, device=device)
        self.used_R = torch.zeros(rows, dtype=torch.long, device=device)  # tokens in the block, tags aside
        self.next_R = torch.zeros(rows, dtype=torch.long, device=device)  # number of the stop token to write; 0: none
        self.forced_RT = torch.zeros(rows, columns, dtype=torch.bool, device=device)
        self.text_S = torch.tensor(stop.text_ids, device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that moves with a row."""
        return self.inside_R, self.used_R, self.next_R, self.forced_RT

    def admit(self, rows_N: Tensor, prompts: list[list[int]]) -> None:
        for state in self.tensors:
            state[rows_N] = torch.zeros_like(state[rows_N])
        self.inside_R[rows_N] = torch.tensor([self.stop.opens(prompt) for prompt in prompts], device=rows_N.device)

    def apply(self, rows_N: Tensor, lengths_N: Tensor, tokens_N: Tensor, logps_N: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that rows get in the place of those sampled, and their log-probabilities (0 of the engine's own).

        A block that closes by itself with the budget just used up is left alone.
        """
        stop, inside_N, used_N, next_N = self.stop, self.inside_R[rows_N], self.used_R[rows_N], self.next_R[rows_N]
        begins_N = inside_N & (used_N >= stop.budget) & (next_N == 0) & (tokens_N != stop.close_id)
        next_N = torch.where(begins_N, torch.ones_like(next_N), next_N)
        forced_N = next_N > 0
        tokens_N = torch.where(forced_N, self.text_S[(next_N - 1).clamp(min=0)], tokens_N)
        closes_N, opens_N = tokens_N == stop.close_id, tokens_N == stop.open_id
        self.used_R[rows_N] = used_N + (inside_N & ~forced_N & ~closes_N & ~opens_N)
        self.inside_R[rows_N] = (inside_N | opens_N) & ~closes_N
        self.next_R[rows_N] = torch.where(forced_N & (next_N < len(self.text_S)), next_N + 1, torch.zeros_like(next_N))
        self.forced_RT[rows_N, lengths_N] = forced_N
        return tokens_N, logps_N.masked_fill(forced_N, 0.0)
