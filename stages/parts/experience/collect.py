"""From problems to rows with advantages: sample whole groups, score them, compare within each group.

Groups are numbered by their place in the rollout and sampled whole on one rank (number % ranks), so equal prompts never
merge. Rewards are few numbers and are gathered: every rank computes the same advantages, token data stays where it was
sampled. Differs from the textbook loop in dynamic sampling (DAPO, arXiv:2503.14476), which is bounded here: after
`resample_rounds` the step goes on with what it has and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from pipeline.tracking import Context
from stages.parts.evaluation.behaviour import measure_behaviour
from stages.parts.experience.config import ExperienceConfig
from stages.parts.experience.order import Cursor, draw
from stages.parts.losses.overlong import shape_rewards
from stages.parts.policy.distributed import gather_objects
from stages.parts.policy.judge import Judge
from stages.parts.policy.model import Policy
from stages.parts.rollouts.config import sampling_of
from stages.parts.rollouts.engine import RolloutEngine
from stages.parts.rollouts.requests import attach_scores, attach_texts, make_requests
from stages.parts.rollouts.types import Problem, Request, Rollout
from stages.parts.verifiers.config import RULE_PARTS
from stages.parts.verifiers.reward import parts_of


@dataclass
class Row:
    """One response on its way into updates. Log-probs are of its response tokens."""

    group: int  # number of its group in the rollout, the same on all ranks
    problem: Problem
    rollout: Rollout
    reward: float = 0.0  # what training sees: the score after the algorithm's length rules; NaN: cannot be judged
    advantages: list[float] = field(default_factory=list)  # one a response token
    trained: bool = True  # carries loss: judged, not filtered
    old_logps: list[float] | None = None  # the trainer's, at rollout time
    reference_logps: list[float] | None = None
    old_values: list[float] | None = None  # a critic's, at rollout time
    returns: list[float] | None = None  # what the critic learns to expect

    @property
    def length(self) -> int:
        return len(self.rollout.prompt_ids) + len(self.rollout.response_ids)


@dataclass
class Brief:
    """What every rank knows about every row."""

    group: int
    sample_index: int
    score: float  # before length rules; decides whether a group tells right from wrong (DAPO eq. 11)
    reward: float
    tokens: int
    truncated: bool
    marks: dict[str, float]  # accuracy and behaviour of the text, for the monitors
    parts: dict[str, float] = field(default_factory=dict)  # of the reward, raw: those that the problem names


@dataclass
class Experience:
    """One rollout: this rank's rows, everybody's briefs, and the mini-batches as lists of group numbers. What dynamic
    sampling turned away is in `sampled` alone. There are always updates_per_rollout mini-batches; some may be empty."""

    rows: list[Row]
    briefs: list[Brief]
    sampled: list[Brief]
    minibatches: list[list[int]]
    resample_rounds: int = 0
    dropped_groups: int = 0


def collect(
    sampler: RolloutEngine,
    policy: Policy,
    pools: dict[str, list[Problem]],
    cursor: Cursor,
    cfg: ExperienceConfig,
    context: Context,
    step: int,
    resample_rounds: int | None = None,
    judge: Judge | None = None,
) -> Experience:
    """Sample and score one rollout of prompts_per_step x updates_per_rollout groups.

    resample_rounds: keep only groups that tell right from wrong, in at most so many more rounds; None: keep all.
    """
    wanted = cfg.prompts_per_step * cfg.updates_per_rollout
    resample = resample_rounds is not None
    rounds, numbered, occurrences = 0, 0, {}
    rows: list[Row] = []
    briefs: list[Brief] = []
    kept: list[int] = []
    while True:
        problems = draw(pools, cfg.suites, cfg.seed, cursor, wanted - len(kept))
        fresh = _sample(sampler, policy, problems, numbered, occurrences, cfg, context, step, judge)
        numbered += len(problems)
        fresh_briefs = _share(fresh, cfg, step)
        rows, briefs = rows + fresh, briefs + fresh_briefs
        kept += _informative(fresh_briefs) if resample else sorted({brief.group for brief in fresh_briefs})
        if not resample or len(kept) >= wanted or rounds == resample_rounds:
            break
        rounds += 1
    if len(kept) < wanted:
        context.note(f"step {step}: {len(kept)} of {wanted} groups told right from wrong after {rounds} more rounds")
    chosen = set(kept)
    return Experience(
        rows=[row for row in rows if row.group in chosen],
        briefs=[brief for brief in briefs if brief.group in chosen],
        sampled=briefs,
        minibatches=[kept[at : at + cfg.prompts_per_step] for at in range(0, wanted, cfg.prompts_per_step)],
        resample_rounds=rounds,
        dropped_groups=numbered - len(kept),
    )


def _sample(
    sampler: RolloutEngine,
    policy: Policy,
    problems: list[Problem],
    numbered: int,
    occurrences: dict[str, int],
    cfg: ExperienceConfig,
    context: Context,
    step: int,
    judge: Judge | None,
) -> list[Row]:
    """Sample and score this rank's share of the groups. A problem that comes again draws other samples."""
    places: list[tuple[int, Problem]] = []
    requests: list[Request] = []
    for offset, problem in enumerate(problems):
        first = occurrences.get(problem.id, 0)
        occurrences[problem.id] = first + cfg.G
        if (numbered + offset) % context.world_size != context.rank:
            continue
        places += [(numbered + offset, problem)] * cfg.G
        for request in make_requests(policy.tokenizer, [problem], cfg.G):
            request.sample_index += first
            requests.append(request)
    rollouts = sampler.generate(requests, sampling_of(cfg), (cfg.seed, context.stage, step))
    attach_texts(policy, rollouts)
    attach_scores([problem for _, problem in places], rollouts, cfg.reward, judge)
    rewards_N = shape_rewards(
        torch.tensor([_value(rollout) for rollout in rollouts], dtype=torch.float64),
        torch.tensor([len(rollout.response_ids) for rollout in rollouts]),
        torch.tensor([rollout.truncated for rollout in rollouts]),
        cfg.algorithm,
        cfg.max_response_tokens,
    )
    return [
        Row(group, problem, rollout, reward)
        for (group, problem), rollout, reward in zip(places, rollouts, rewards_N.tolist(), strict=True)
    ]


def _share(rows: list[Row], cfg: ExperienceConfig, step: int) -> list[Brief]:
    """Everybody's briefs in order of group and sample. The negative control permutes all rewards here."""
    mine = [_brief(row) for row in rows]
    briefs = sorted(gather_objects(mine), key=lambda brief: (brief.group, brief.sample_index))
    if cfg.reward.shuffle:
        order = np.random.default_rng((cfg.seed, step, briefs[0].group)).permutation(len(briefs))
        for brief, (score, reward) in zip(briefs, [(briefs[at].score, briefs[at].reward) for at in order], strict=True):
            brief.score, brief.reward = score, reward
        by_key = {(brief.group, brief.sample_index): brief.reward for brief in briefs}
        for row in rows:
            row.reward = by_key[row.group, row.rollout.sample_index]
    return briefs


def _brief(row: Row) -> Brief:
    rollout = row.rollout
    assert rollout.score is not None
    scored = rollout.score.parts
    rules = {name: value for name, value in scored.items() if name in RULE_PARTS}
    marks = {"accuracy": 0.0, **rules, **measure_behaviour(rollout.text)}
    parts = {name: scored[name] for name in parts_of(row.problem) if name in scored}
    tokens = len(rollout.response_ids)
    return Brief(row.group, rollout.sample_index, _value(rollout), row.reward, tokens, rollout.truncated, marks, parts)


def _value(rollout: Rollout) -> float:
    """The score as a number; NaN where the response cannot be judged."""
    assert rollout.score is not None
    return float("nan") if rollout.score.value is None else rollout.score.value


def _informative(briefs: list[Brief]) -> list[int]:
    """Groups whose judged scores differ."""
    scores: dict[int, list[float]] = {}
    for brief in briefs:
        if brief.score == brief.score:  # NaN is not judged
            scores.setdefault(brief.group, []).append(brief.score)
    return [group for group, values in sorted(scores.items()) if max(values) - min(values) > 1e-6]
