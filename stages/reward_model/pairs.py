"""Pairs as the tokens that the model reads, and the numbers that held-out pairs give.

Suffix: P pairs of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.artifacts import StageFailed
from pipeline.statistics import Estimate, estimate
from pipeline.tracking import Metrics
from stages.parts.data.pairs import Pair
from stages.parts.policy.batch import TokenBatch, aligned_microbatches
from stages.parts.policy.distributed import gather_objects
from stages.parts.policy.model import Policy
from stages.parts.policy.reward_model import encode_response, reward_batch, rewards_of


@dataclass(frozen=True)
class TokenPair:
    """One pair, both sides as whole conversations."""

    pair: Pair
    chosen: list[int]
    rejected: list[int]

    @property
    def room(self) -> int:
        """Columns that it takes in a padded micro-batch: two rows, one column behind each."""
        return 2 * (max(len(self.chosen), len(self.rejected)) + 1)


@dataclass
class Encoded:
    """The usable pairs of one split, and what became of the others."""

    pairs: list[TokenPair]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Verdict:
    """One held-out pair with both rewards."""

    place: int  # in its split
    pair: Pair
    chosen: float
    rejected: float
    tokens: tuple[int, int]  # of the two conversations

    @property
    def right(self) -> float:
        """1 where the chosen one has more reward, a half where both have the same."""
        return float(self.chosen > self.rejected) + 0.5 * float(self.chosen == self.rejected)


def encode_pairs(pairs: list[Pair], tokenizer: Any, max_tokens: int) -> Encoded:
    """Pairs whose judged parts are the same (they differ in thinking, say) and too long ones are left out, counted."""
    encoded = Encoded([], {"pairs": len(pairs), "dropped_same": 0, "dropped_long": 0})
    for pair in pairs:
        chosen, rejected = (
            encode_response(tokenizer, pair.messages, pair.axis, text) for text in (pair.chosen, pair.rejected)
        )
        if chosen == rejected:
            encoded.counts["dropped_same"] += 1
        elif max(len(chosen), len(rejected)) > max_tokens:
            encoded.counts["dropped_long"] += 1
        else:
            encoded.pairs.append(TokenPair(pair, chosen, rejected))
    return encoded


def check_usable(encoded: Encoded, max_tokens: int) -> None:
    """Raises StageFailed where nothing can be learned."""
    if not encoded.pairs:
        counts = encoded.counts
        raise StageFailed(
            f"no usable pair of {counts['pairs']}: {counts['dropped_same']} have the same text on both sides where "
            f"they are judged, {counts['dropped_long']} are longer than max_tokens={max_tokens}"
        )


def pair_rewards(
    pairs: list[TokenPair], policy: Policy, values: Callable[[TokenBatch], Tensor | None]
) -> tuple[Tensor, Tensor]:
    """(chosen_P, rejected_P) of one micro-batch."""
    batch = reward_batch([side for pair in pairs for side in (pair.chosen, pair.rejected)], policy)
    rewards = rewards_of(values(batch), batch)
    return rewards[0::2], rewards[1::2]


@torch.no_grad()
def judge_pairs(
    pairs: list[TokenPair],
    policy: Policy,
    values: Callable[[TokenBatch], Tensor | None],
    tokens_per_microbatch: int,
    shard: tuple[int, int],
) -> list[Verdict]:
    """All pairs with their rewards, in order, on every rank; each scores its share, shard = (rank, ranks)."""
    mine = list(enumerate(pairs))[shard[0] :: shard[1]]
    verdicts = []
    for indices in aligned_microbatches([pair.room for _, pair in mine], tokens_per_microbatch):
        chosen = [mine[index] for index in indices]
        better_P, worse_P = pair_rewards([pair for _, pair in chosen], policy, values)
        for (place, pair), better, worse in zip(chosen, better_P.tolist(), worse_P.tolist(), strict=True):
            verdicts.append(Verdict(place, pair.pair, better, worse, (len(pair.chosen), len(pair.rejected))))
    return sorted(gather_objects(verdicts), key=lambda verdict: verdict.place)


def centres_of(verdicts: list[Verdict]) -> dict[str, float]:
    """Axis -> mean reward of all responses."""
    axes = sorted({verdict.pair.axis for verdict in verdicts})
    return {
        axis: float(np.mean([(v.chosen + v.rejected) / 2 for v in verdicts if v.pair.axis == axis])) for axis in axes
    }


def heldout_numbers(verdicts: list[Verdict], centres: dict[str, float], seed: int) -> Metrics:
    """Pairwise accuracy with its interval over prompts, by axis and by what is wrong with the rejected one; rewards
    above the centre; and whether length alone would do."""
    metrics = _accuracy("pairs", verdicts, seed)
    for axis in sorted({verdict.pair.axis for verdict in verdicts}):
        mine = [verdict for verdict in verdicts if verdict.pair.axis == axis]
        metrics |= _accuracy(f"pairs/{axis}", mine, seed)
        for reason in sorted({verdict.pair.reason for verdict in mine} - {""}):
            right = [verdict.right for verdict in mine if verdict.pair.reason == reason]
            metrics[f"pairs/{axis}/{reason}/accuracy"] = float(np.mean(right))
        centre = centres.get(axis, 0.0)
        metrics[f"reward/{axis}/chosen"] = float(np.mean([verdict.chosen - centre for verdict in mine]))
        metrics[f"reward/{axis}/rejected"] = float(np.mean([verdict.rejected - centre for verdict in mine]))
    return metrics | length_numbers(verdicts, centres)


def length_numbers(verdicts: list[Verdict], centres: dict[str, float]) -> Metrics:
    """`length/correlation`: Pearson's, of reward and length over all responses, each axis around its own means;
    `length/longer_is_chosen`: accuracy of choosing the longer one, a tie counting half."""
    rewards, lengths = [], []
    for axis in sorted({verdict.pair.axis for verdict in verdicts}):
        mine = [verdict for verdict in verdicts if verdict.pair.axis == axis]
        tokens = np.asarray([verdict.tokens for verdict in mine], dtype=np.float64)
        rewards += [reward - centres.get(axis, 0.0) for v in mine for reward in (v.chosen, v.rejected)]
        lengths += (tokens - tokens.mean()).reshape(-1).tolist()
    longer = [float(v.tokens[0] > v.tokens[1]) + 0.5 * float(v.tokens[0] == v.tokens[1]) for v in verdicts]
    varies = len(set(rewards)) > 1 and len(set(lengths)) > 1
    return {
        "length/correlation": float(np.corrcoef(rewards, lengths)[0, 1]) if varies else float("nan"),
        "length/longer_is_chosen": float(np.mean(longer)),
    }


def _accuracy(name: str, verdicts: list[Verdict], seed: int) -> Metrics:
    interval = _by_prompt(verdicts, seed)
    return {
        f"{name}/accuracy": float(np.mean([verdict.right for verdict in verdicts])),
        f"{name}/accuracy_low": interval.low,
        f"{name}/accuracy_high": interval.high,
        f"{name}/number": float(len(verdicts)),
    }


def _by_prompt(verdicts: list[Verdict], seed: int) -> Estimate:
    """Pairs of one prompt are not independent: prompts are what is drawn again."""
    rights: dict[str, list[float]] = {}
    for verdict in verdicts:
        rights.setdefault(verdict.pair.problem_id, []).append(verdict.right)
    return estimate([float(np.mean(values)) for values in rights.values()], seed)
