"""A reward model that scores responses while a policy is trained: the learned parts of a reward.

A part is sigmoid(reward - centre): the chance, as Bradley-Terry has it, that this response is preferred to an average
held-out one on that axis. So it lies in [0, 1] like the parts that are rules, and what lies far beyond the data that
the model knows cannot earn without bound (arXiv:2502.18770 shapes rewards so against gaming).
The model never generates. It is of the policy's size and only scores, so under ZeRO-3 it is partitioned as the
reference is, and whole on each rank otherwise: no gathering in each pass where there is room. The text is encoded by
the reward model's own tokenizer and template, whatever the policy's are; training still sees the sampled ids alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.parts.policy.batch import aligned_microbatches
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.reference import Reference, frozen
from stages.parts.policy.reward_model import encode_response, load_reward_model, reward_batch, rewards_of
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import LEARNED_PARTS
from stages.parts.verifiers.reward import parts_of


@dataclass
class Judge:
    """A frozen reward model."""

    scorer: Reference
    centres: dict[str, float]  # axis -> the reward that counts as average
    tokens_per_microbatch: int


def load_judge(path: Path, cfg: TrainedStageConfig) -> Judge:
    """Collective."""
    loaded = load_reward_model(path, cfg.dtype)
    return Judge(frozen(loaded.policy, cfg), loaded.centres, cfg.tokens_per_microbatch)


@torch.no_grad()
def learned_parts(judge: Judge, problems: list[Problem], texts: list[str]) -> list[dict[str, float]]:
    """part -> score in [0, 1] of each response, for the learned parts that its problem names. A collective: ranks
    without such responses take part."""
    asked = [
        (place, part)
        for place, problem in enumerate(problems)
        for part in parts_of(problem)
        if part in LEARNED_PARTS
    ]  # fmt: skip
    policy = judge.scorer.policy
    sequences = [
        encode_response(policy.tokenizer, problems[place].messages, part, texts[place]) for place, part in asked
    ]
    parts: list[dict[str, float]] = [{} for _ in problems]
    for indices in aligned_microbatches([len(ids) + 1 for ids in sequences], judge.tokens_per_microbatch):
        batch = reward_batch([sequences[index] for index in indices], policy)
        rewards = rewards_of(judge.scorer.logps(batch).values_BT, batch).tolist()
        for index, reward in zip(indices, rewards, strict=True):
            place, part = asked[index]
            parts[place][part] = chance(reward - judge.centres.get(part, 0.0))
    return parts


def chance(reward: float) -> float:
    """sigmoid."""
    if reward >= 0:
        return 1.0 / (1.0 + math.exp(-min(reward, 700.0)))
    return math.exp(max(reward, -700.0)) / (1.0 + math.exp(max(reward, -700.0)))
