"""The rows that are being decoded: admission, one step, compaction.

Rows 0..count-1 are in use; some of them may have ended and wait to be refilled or filled up from the end. Moving a
few rows from the end into the holes costs what moves, where selecting all living rows would copy the whole memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipeline.artifacts import StageFailed
from stages.parts.rollouts.budget import BudgetState, Stop
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.decoders import Decoder
from stages.parts.rollouts.sampling import sample, uniform

if TYPE_CHECKING:
    from stages.parts.policy.model import Policy

Ended = tuple[int, list[int], list[float], bool, list[int]]  # request, ids, log-probabilities, truncated, forced places
EMPTY = -1


class Batch:
    """State of `rows` rows of `columns` tokens. Tensors live on the policy's device, bookkeeping on the host."""

    def __init__(
        self,
        policy: Policy,
        decoder: Decoder,
        sampling: SamplingConfig,
        rows: int,
        columns: int,
        stop: Stop | None = None,
    ):
        device, limit = policy.device, sampling.max_response_tokens
        self.decoder, self.sampling, self.device, self.rows = decoder, sampling, device, rows
        decoder.open(rows, columns)
        self.tokens_R = torch.zeros(rows, dtype=torch.long, device=device)  # the last one, not yet in the memory
        self.positions_R = torch.zeros_like(self.tokens_R)  # where it goes
        self.lengths_R = torch.zeros_like(self.tokens_R)  # tokens of the response so far
        self.seeds_R = torch.zeros_like(self.tokens_R)
        self.living_R = torch.zeros_like(self.tokens_R)  # 1 or 0: what a step adds to positions and lengths
        self.ids_RT = torch.zeros(rows, limit, dtype=torch.long, device=device)
        self.logps_RT = torch.zeros(rows, limit, dtype=torch.float32, device=device)
        self.index_R = torch.arange(rows, device=device)
        self.ends_E = torch.tensor(sorted(policy.end_ids), device=device)
        self.end_ids = policy.end_ids
        self.budget = BudgetState(stop, rows, limit, device) if stop is not None else None
        self.count = 0  # rows in use
        self.requests = np.full(rows, EMPTY)  # request of each row
        self.depths = np.zeros(rows, dtype=np.int64)  # tokens in the memory once the next step is done

    @property
    def alive(self) -> int:
        return int((self.requests != EMPTY).sum())

    @property
    def free(self) -> int:
        return self.rows - self.alive

    def admit(self, requests: list[int], prompts: list[list[int]], seeds: list[int]) -> list[Ended]:
        """Start requests in free rows: prefill their unique prompts, sample the first token."""
        rows = np.flatnonzero(self.requests == EMPTY)[: len(requests)]
        self.count = max(self.count, int(rows[-1]) + 1)
        unique = {prompt: index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        lengths = [len(prompt) for prompt in unique]
        ids_UQ = torch.zeros(len(unique), max(lengths), dtype=torch.long)
        for index, prompt in enumerate(unique):
            ids_UQ[index, : len(prompt)] = torch.tensor(prompt)
        source_N = self._tensor([unique[tuple(prompt)] for prompt in prompts])
        rows_N = self._tensor(rows.tolist())
        logits_UV = self.decoder.prefill(ids_UQ.to(self.device), self._tensor(lengths), source_N, rows_N)
        self.requests[rows] = requests
        self.depths[rows] = [len(prompt) for prompt in prompts]
        self.seeds_R[rows_N] = self._tensor(seeds)
        self.lengths_R[rows_N] = 0
        self.living_R[rows_N] = 1
        self.positions_R[rows_N] = self._tensor([len(prompt) - 1 for prompt in prompts])
        if self.budget is not None:
            self.budget.admit(rows_N, prompts)
        return self._take(rows, rows_N, logits_UV[source_N])

    def decode(self) -> list[Ended]:
        """One token for every row in use; those that ended with it are handed out and their rows freed."""
        used = slice(0, self.count)
        width = int(self.depths[self.requests != EMPTY].max())
        # Ended rows that wait to be refilled may be deeper than any living one.
        positions_R = self.positions_R[used].clamp(max=width - 1)
        logits_RV = self.decoder.decode(self.tokens_R[used], positions_R, width)
        return self._take(np.arange(self.count), self.index_R[used], logits_RV)

    def compact(self) -> None:
        """Fill holes with the last living rows once an eighth of the rows in use has ended."""
        living = np.flatnonzero(self.requests != EMPTY)
        if self.count - len(living) < max(1, self.count // 8):
            return
        target = np.flatnonzero(self.requests[: len(living)] == EMPTY)
        source = living[len(living) - len(target) :]
        if len(target):
            source_N, target_N = self._tensor(source.tolist()), self._tensor(target.tolist())
            self.decoder.move(source_N, target_N, int(self.depths[living].max()))
            for state in (self.tokens_R, self.positions_R, self.lengths_R, self.seeds_R, self.living_R):
                state[target_N] = state[source_N]
            for state in (self.ids_RT, self.logps_RT, *(self.budget.tensors if self.budget is not None else ())):
                state[target_N] = state[source_N]
            for host in (self.requests, self.depths):
                host[target] = host[source]
        self.requests[len(living) :] = EMPTY
        self.count = len(living)

    def _take(self, rows: np.ndarray, rows_N: Tensor, logits_NV: Tensor) -> list[Ended]:
        """Sample a token for rows, record it, and hand out the rows that ended with it."""
        lengths_N, living_N = self.lengths_R[rows_N], self.living_R[rows_N]
        tokens_N, logps_N = sample(logits_NV, uniform(self.seeds_R[rows_N], lengths_N), self.sampling)
        if self.budget is not None:
            tokens_N, logps_N = self.budget.apply(rows_N, lengths_N, tokens_N, logps_N)
        self.ids_RT[rows_N, lengths_N] = tokens_N
        self.logps_RT[rows_N, lengths_N] = logps_N
        self.tokens_R[rows_N] = tokens_N
        self.positions_R[rows_N] += living_N
        stopped_N = (tokens_N[:, None] == self.ends_E).any(dim=-1)
        full_N = lengths_N + 1 >= self.sampling.max_response_tokens
        ended_N = (stopped_N | full_N) & living_N.bool()
        self.lengths_R[rows_N] = lengths_N + (living_N * ~ended_N)  # an ended row stays inside its own row
        self.living_R[rows_N] = living_N * ~ended_N
        self.depths[rows] += self.requests[rows] != EMPTY
        ended = np.flatnonzero(ended_N.cpu().numpy())
        return self._hand_out(rows[ended]) if len(ended) else []

    def _hand_out(self, rows: np.ndarray) -> list[Ended]:
        rows_N = self._tensor(rows.tolist())
        lengths = (self.lengths_R[rows_N] + 1).tolist()
        ids_NT, logps_NT = self.ids_RT[rows_N, : max(lengths)], self.logps_RT[rows_N, : max(lengths)]
        ids, logps = ids_NT.tolist(), logps_NT.tolist()
        forced = self._forced(rows_N, lengths)
        ended: list[Ended] = []
        for row, length, row_ids, row_logps, places in zip(rows, lengths, ids, logps, forced, strict=True):
            if not all(map(math.isfinite, row_logps[:length])):
                raise StageFailed("the sampler's log-probabilities are not finite: the model's weights are broken")
            truncated = row_ids[length - 1] not in self.end_ids
            ended.append((int(self.requests[row]), row_ids[:length], row_logps[:length], truncated, places))
        self.requests[rows] = EMPTY
        return ended

    def _forced(self, rows_N: Tensor, lengths: list[int]) -> list[list[int]]:
        """Places of each response that the budget wrote."""
        if self.budget is None:
            return [[] for _ in lengths]
        rows = self.budget.forced_RT[rows_N].cpu()
        return [row[:length].nonzero().flatten().tolist() for row, length in zip(rows, lengths, strict=True)]

    def latest(self, row: int = 0) -> tuple[int, bool]:
        """The newest token of a row, and whether the budget wrote it. The row may just have ended."""
        place = int(self.lengths_R[row] - self.living_R[row])
        return int(self.ids_RT[row, place]), self.budget is not None and bool(self.budget.forced_RT[row, place])

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
