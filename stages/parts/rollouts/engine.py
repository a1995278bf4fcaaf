"""Sampling responses with the policy's own weights, in this process.

Differs from `model.generate`: a group's prompt runs once and its keys and values are copied to the group's rows; a
row that has ended leaves at once, and where that pays a waiting request takes its place in the middle of the others'
decoding; the noise of a token is a function of what it belongs to (sampling.py), so batches may be cut any way.

R rows, U unique prompts, Q tokens of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from pipeline.artifacts import StageFailed
from stages.parts.rollouts.batch import Batch
from stages.parts.rollouts.budget import stop_of
from stages.parts.rollouts.config import MAX_ROWS, SamplingConfig
from stages.parts.rollouts.decoders import Decoder, fitting_decoder
from stages.parts.rollouts.sampling import noise_seeds
from stages.parts.rollouts.types import Request, Rollout

if TYPE_CHECKING:
    from stages.parts.policy.model import Policy

PREFILL_TOKENS = 16384  # of one prefill, padding included
# Share of the rows that must be free before waiting requests are let in. A GPU's step costs nearly the same for few
# rows as for many: refill early. A CPU's step costs what its rows and their columns cost, and attention reads every
# row as wide as the deepest one: let a batch of like depth run out, its last steps are cheap.
REFILL_SHARE = {"cuda": 1 / 8, "cpu": 1.0}


class RolloutEngine(Protocol):
    """Something that samples responses and can be given new weights."""

    def generate(
        self, requests: list[Request], sampling: SamplingConfig, noise_key: tuple[int, str, int]
    ) -> list[Rollout]:
        """One rollout a request, in the order of the requests. noise_key is (seed, stage name, step)."""
        ...

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Take over full (unsharded) weights under their transformers names."""
        ...


@dataclass
class TransformersEngine:
    """`RolloutEngine` over a transformers model."""

    policy: Policy
    max_rows: int
    max_tokens: int | None  # rows x (prompt + response limit) at once; None: what half of the free memory holds
    refill_share: float
    decoder: Decoder = field(init=False)

    def __post_init__(self) -> None:
        model = self.policy.model
        # Adapters live in the layers; the model they were put into is what has the architecture.
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        with _evaluating(model):
            self.decoder = fitting_decoder(model)

    def generate(
        self, requests: list[Request], sampling: SamplingConfig, noise_key: tuple[int, str, int]
    ) -> list[Rollout]:
        if not requests:
            return []
        columns = self._columns(requests, sampling)
        rows = max(1, min(self.max_rows, len(requests), self._token_budget() // columns))
        seeds = noise_seeds(noise_key, [(request.problem_id, request.sample_index) for request in requests])
        # Longest prompts first: rows of like length decode side by side, and equal prompts stay together.
        waiting = sorted(range(len(requests)), key=lambda index: len(requests[index].prompt_ids))
        finished: dict[int, Rollout] = {}
        with torch.inference_mode(), _evaluating(self.policy.model):
            stop = stop_of(self.policy.tokenizer, sampling, self.policy.end_ids)
            batch = Batch(self.policy, self.decoder, sampling, rows, columns, stop)
            while waiting or batch.alive:
                if waiting and (not batch.alive or batch.free >= max(1, rows * self.refill_share)):
                    count = _fitting(requests, waiting, batch.free)
                    admitted = [waiting.pop() for _ in range(count)]
                    prompts = [requests[index].prompt_ids for index in admitted]
                    ended = batch.admit(admitted, prompts, [seeds[index] for index in admitted])
                else:
                    batch.compact()
                    ended = batch.decode()
                for index, ids, logps, truncated, forced in ended:
                    request = requests[index]
                    finished[index] = Rollout(
                        request.problem_id,
                        request.sample_index,
                        request.prompt_ids,
                        ids,
                        logps,
                        truncated,
                        forced=forced,
                    )
            self.decoder.open(1, 1)  # an update may come next: it needs the room
        return [finished[index] for index in range(len(requests))]

    def stream(
        self, request: Request, sampling: SamplingConfig, noise_key: tuple[int, str, int]
    ) -> Iterator[tuple[int, bool]]:
        """The tokens that `generate` would give, as they come; each with whether a budget's stop text wrote it."""
        stop = stop_of(self.policy.tokenizer, sampling, self.policy.end_ids)
        seeds = noise_seeds(noise_key, [(request.problem_id, request.sample_index)])
        with torch.inference_mode(), _evaluating(self.policy.model):
            batch = Batch(self.policy, self.decoder, sampling, 1, self._columns([request], sampling), stop)
            ended = batch.admit([0], [request.prompt_ids], seeds)
        yield batch.latest()
        while not ended:
            with torch.inference_mode(), _evaluating(self.policy.model):
                ended = batch.decode()
            yield batch.latest()

    def load_weights(self, state: dict[str, Tensor]) -> None:
        """Copy weights into the engine's model; a tensor that is the model's own (same memory) costs nothing."""
        own = self.policy.model.state_dict()
        missing = sorted(own.keys() - state.keys() - set(self.policy.model.all_tied_weights_keys))
        if missing:
            raise StageFailed(f"the weights for the sampler lack {len(missing)} tensors, first {missing[0]}")
        with torch.no_grad():
            for name, tensor in own.items():
                if name in state and state[name].data_ptr() != tensor.data_ptr():
                    tensor.copy_(state[name])

    def _columns(self, requests: list[Request], sampling: SamplingConfig) -> int:
        longest = max(len(request.prompt_ids) for request in requests)
        columns = longest + sampling.max_response_tokens
        limit = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        if min(len(request.prompt_ids) for request in requests) == 0:
            raise StageFailed("a prompt has no tokens: nothing to go on from")
        if limit is not None and columns > limit:
            room = limit - longest
            lower = f"lower max_response_tokens to {room} or " if room > 0 else ""
            raise StageFailed(
                f"a prompt of {longest} tokens and {sampling.max_response_tokens} of response do not fit the model's "
                f"context of {limit}: {lower}leave long prompts out, or show fewer examples in them"
            )
        return columns

    def _token_budget(self) -> int:
        if self.max_tokens is not None:
            return self.max_tokens
        token_bytes = self.decoder.token_bytes()
        if self.policy.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.policy.device)[0] // 2 // token_bytes)
        return int(2**31 // token_bytes)  # a CPU: 2 GiB


def transformers_engine(policy: Policy, max_rows: int = MAX_ROWS, max_tokens: int | None = None) -> TransformersEngine:
    """An engine that reads policy.model live: a trainer that updates the same object has nothing to sync."""
    return TransformersEngine(policy, max_rows, max_tokens, REFILL_SHARE.get(policy.device.type, 1 / 8))


def _fitting(requests: list[Request], waiting: list[int], free: int) -> int:
    """How many of the last `waiting` requests one prefill takes: free rows, and padded tokens of unique prompts."""
    unique: set[tuple[int, ...]] = set()
    longest = 0
    for count, index in enumerate(reversed(waiting)):
        prompt = requests[index].prompt_ids
        unique.add(tuple(prompt))
        longest = max(longest, len(prompt))
        if count == free or (count > 0 and longest * len(unique) > PREFILL_TOKENS):
            return count
    return len(waiting)


@contextmanager
def _evaluating(model: torch.nn.Module):
    """Dropout off, and on again where a trainer had it on."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
