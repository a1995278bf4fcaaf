"""Process supervision: rewards for the steps of a response instead of one for the whole (arXiv:2402.03300, 4.1.3).

A response's steps are its arithmetic steps, checked exactly, and last the answer: 1 or 0 for a step, for the answer
the outcome's reward as a share of the most it can be, so that all steps are of one size. Differs from the paper in the
judge: rules where it has a learned model. A response without arithmetic has one step, its answer, and is then
supervised by outcome. The advantage of a token (`process_advantages`) is the sum of the normalised rewards of the steps
that end at or after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.tracking import Metrics
from stages.parts.experience.collect import Experience, Row
from stages.parts.losses.advantages import AdvantageResult, process_advantages
from stages.parts.policy.distributed import gather_objects
from stages.parts.policy.model import Policy
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.steps import find_steps
from stages.rl.config import RLConfig


@dataclass
class StepRewards:
    """The steps of one response, in order; its answer is the last."""

    rewards: list[float]
    ends: list[int]  # index among the response's tokens of each step's last one


def step_rewards(row: Row, tokenizer: Any, cfg: RLConfig) -> StepRewards:
    question = row.problem.messages[-1]["content"]
    steps = find_steps(row.rollout.text, question, cfg.step_numbers_once)
    last = len(row.rollout.response_ids) - 1
    ends = token_ends(row.rollout.response_ids, row.rollout.text, tokenizer)
    places = [next((index for index, end in enumerate(ends) if end >= step.end), last) for step in steps]
    answer = row.reward / most(cfg.reward)
    return StepRewards([*(float(step.right) for step in steps), answer], [*places, last])


def most(reward: RewardConfig) -> float:
    """The most that a response can earn."""
    return sum(max(weight, 0.0) for weight in (reward.accuracy, reward.format, reward.language)) or 1.0


def token_ends(ids: list[int], text: str, tokenizer: Any) -> list[int]:
    """For each token, how many characters of `text` there are once it is decoded.

    Where tokens are whole characters their texts are simply added up; where some are parts of one (bytes), prefixes are
    decoded. Tokens after the text (an end token) get its length.
    """
    pieces = {token: _decode(tokenizer, [token]) for token in set(ids)}
    ends, total = [], 0
    for token in ids:
        total += len(pieces[token])
        ends.append(total)
    if "".join(pieces[token] for token in ids).startswith(text):
        return ends
    return [min(len(_decode(tokenizer, ids[: index + 1])), len(text)) for index in range(len(ids))]


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def advantages_of_steps(experience: Experience, policy: Policy, cfg: RLConfig) -> tuple[AdvantageResult, Metrics]:
    """Token advantages of all responses in the order of the briefs, from the steps of all ranks; and what to log."""
    mine = [
        ((row.group, row.rollout.sample_index), step_rewards(row, policy.tokenizer, cfg)) for row in experience.rows
    ]
    everyone = dict(gather_objects(mine))
    found = [everyone[brief.group, brief.sample_index] for brief in experience.briefs]
    rewards_N = torch.tensor([brief.reward for brief in experience.briefs], dtype=torch.float64)
    result = process_advantages(
        [torch.tensor(steps.rewards, dtype=torch.float64) for steps in found],
        [torch.tensor(steps.ends) for steps in found],
        [brief.tokens for brief in experience.briefs],
        torch.tensor([brief.group for brief in experience.briefs]),
        ~rewards_N.isnan(),
        cfg.algorithm,
    )
    return result, _metrics([steps.rewards[:-1] for steps in found])


def _metrics(steps_N: list[list[float]]) -> Metrics:
    """Without the answers: they are the accuracy."""
    count = sum(map(len, steps_N))
    right = sum(map(sum, steps_N))
    return {"steps/mean": count / max(len(steps_N), 1), "steps/right": right / count if count else float("nan")}
