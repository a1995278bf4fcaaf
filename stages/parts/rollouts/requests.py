"""Between problems and rollouts: requests, texts, scores, groups.

Text is for verifiers and people; training takes the sampled ids as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stages.parts.data.template import render_prompt
from stages.parts.policy.judge import Judge, learned_parts
from stages.parts.rollouts.config import RESPONSES_PER_CALL, SamplingConfig
from stages.parts.rollouts.engine import RolloutEngine
from stages.parts.rollouts.types import Problem, Request, Rollout, RolloutGroup
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.reward import score_all

if TYPE_CHECKING:
    from stages.parts.policy.model import Policy


def make_requests(tokenizer: Any, problems: list[Problem], samples: int, thinking: bool = True) -> list[Request]:
    """`samples` requests a problem, a problem's own beside each other, sample_index from 0. thinking=False: prompts end
    with an empty think block."""
    requests = []
    for problem in problems:
        prompt_ids = render_prompt(tokenizer, problem.messages, thinking)
        requests += [Request(problem.id, index, prompt_ids) for index in range(samples)]
    return requests


def attach_texts(policy: Policy, rollouts: list[Rollout]) -> None:
    """Fill in `text`: the response without its end token, other special tokens written out."""
    if not rollouts:
        return
    bodies = [rollout.response_ids if rollout.truncated else rollout.response_ids[:-1] for rollout in rollouts]
    texts = policy.tokenizer.batch_decode(bodies, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for rollout, text in zip(rollouts, texts, strict=True):
        rollout.text = text


def attach_scores(
    problems: list[Problem], rollouts: list[Rollout], reward: RewardConfig, judge: Judge | None = None
) -> None:
    """Fill in `score`; problems[i] is what rollouts[i] answers. Texts must be there. With a judge a collective."""
    texts, truncated = [rollout.text for rollout in rollouts], [rollout.truncated for rollout in rollouts]
    learned = learned_parts(judge, problems, texts) if judge is not None else None
    for rollout, score in zip(rollouts, score_all(problems, texts, truncated, reward, learned), strict=True):
        rollout.score = score


def group_rollouts(problems: list[Problem], rollouts: list[Rollout], samples: int) -> list[RolloutGroup]:
    """Rollouts in the order of `make_requests`, as groups: by place, never by the prompt's text."""
    return [
        RolloutGroup(problem, rollouts[place * samples : (place + 1) * samples])
        for place, problem in enumerate(problems)
    ]


def answer_problems(
    engine: RolloutEngine,
    policy: Policy,
    problems: list[Problem],
    samples: int,
    sampling: SamplingConfig,
    noise_key: tuple[int, str, int],
    reward: RewardConfig,
    shard: tuple[int, int],
    between: Callable[[int], None],
    thinking: bool = True,
    judge: Judge | None = None,
) -> list[RolloutGroup]:
    """This rank's scored groups: every n-th of all `problems`, shard = (rank, n), in calls of `RESPONSES_PER_CALL`.

    `between` is told after each call how many problems all ranks have answered; it may raise to stop. It is called
    equally often on every rank, also on one that has fewer problems, so it may hold a collective.
    """
    rank, ranks = shard
    mine = problems[rank::ranks]
    width = max(1, RESPONSES_PER_CALL // samples)
    largest = -(-len(problems) // ranks)
    groups: list[RolloutGroup] = []
    for start in range(0, largest, width):
        part = mine[start : start + width]
        rollouts = engine.generate(make_requests(policy.tokenizer, part, samples, thinking), sampling, noise_key)
        attach_texts(policy, rollouts)
        attach_scores([problem for problem in part for _ in range(samples)], rollouts, reward, judge)
        groups += group_rollouts(part, rollouts, samples)
        between(min((start + width) * ranks, len(problems)))
    return groups
