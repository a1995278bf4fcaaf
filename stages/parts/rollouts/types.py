"""The nouns of a rollout. Importable without torch.

A prompt is rendered and tokenized once; the sampled ids go to training as they are: nothing is decoded and encoded
again in between (the text is for verifiers and people).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Problem:
    """One row of a `dataset:problems`."""

    id: str  # unique in its dataset; keys groups and sampling noise
    suite: str  # reasoning | general | ...
    family: str  # chain_sum, spell_backward, ...
    messages: list[dict[str, str]]  # the prompt as a conversation, last turn from the user
    answer: str  # gold
    verifier: str = "math"  # row of VERIFIERS
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Score:
    """A verdict on one response. value None: cannot be judged (a fault of the gold, the verifier or the judge)."""

    value: float | None
    parts: dict[str, float] = field(default_factory=dict)  # accuracy, format, language: raw, unweighted
    reason: str = ""


@dataclass
class Request:
    """One response to sample. Equal prompts are prefilled once."""

    problem_id: str
    sample_index: int  # 0..G-1 within the group
    prompt_ids: list[int]


@dataclass
class Rollout:
    """One sampled response."""

    problem_id: str
    sample_index: int
    prompt_ids: list[int]
    response_ids: list[int]  # ends with an end token unless truncated
    sampler_logps: list[float]  # of each response token, at the sampling temperature, from the sampler
    truncated: bool  # hit the limit: there is no end token
    text: str = ""  # decoded response without the end token
    score: Score | None = None
    forced: list[int] = field(default_factory=list)  # places in response_ids of what the engine wrote (a budget's stop)

    @property
    def mask(self) -> list[float]:
        """One a response token: 1 where the policy produced it. Nothing else carries loss."""
        written = set(self.forced)
        return [0.0 if place in written else 1.0 for place in range(len(self.response_ids))]


@dataclass
class RolloutGroup:
    """All responses to one problem of one rollout, in order of sample_index. Advantages come from whole groups."""

    problem: Problem
    rollouts: list[Rollout]
