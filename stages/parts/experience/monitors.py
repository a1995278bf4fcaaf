"""What to watch while a policy is trained: whether reward, accuracy, length and behaviour move together.

Keys are `group/name`. `reward/*` (its parts: of the problems that name them), `rollout/*`, `length/*`, `groups/*` and
`behaviour/*` are of the training problems of one rollout; `heldout/<suite>/*` of dev problems of every suite, also
those that are not trained on, sampled with the same settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.artifacts import StageFailed
from pipeline.statistics import pass_at_k
from pipeline.tracking import Context, Metrics
from stages.parts.evaluation.suites import problem_results, response_means, response_rows
from stages.parts.experience.collect import Experience, Row
from stages.parts.experience.config import ExperienceConfig
from stages.parts.experience.gaming import gaming_metrics
from stages.parts.policy.distributed import gather_objects
from stages.parts.policy.judge import Judge
from stages.parts.policy.model import Policy
from stages.parts.rollouts.config import sampling_of
from stages.parts.rollouts.engine import RolloutEngine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import LEARNED_PARTS, RULE_PARTS


def rollout_metrics(experience: Experience) -> Metrics:
    """Reward, groups, length and behaviour of all that was sampled for one rollout, over all ranks."""
    briefs = experience.sampled
    judged = [brief for brief in briefs if brief.reward == brief.reward]
    right = [brief for brief in judged if brief.marks["accuracy"] == 1]
    wrong = [brief for brief in judged if brief.marks["accuracy"] != 1]
    groups: dict[int, list[float]] = defaultdict(list)
    for brief in judged:
        groups[brief.group].append(brief.marks["accuracy"])
    rewards: dict[int, list[float]] = defaultdict(list)
    for brief in judged:
        rewards[brief.group].append(brief.reward)
    constant = {group for group, values in rewards.items() if max(values) - min(values) <= 1e-6}
    tokens = sum(brief.tokens for brief in briefs)
    metrics = {
        "reward/mean": _mean(brief.reward for brief in judged),
        "reward/within_group_std": _mean(float(np.std(values)) for values in rewards.values()),
        "rollout/accuracy": _mean(brief.marks["accuracy"] for brief in judged),
        "rollout/truncated": _mean(brief.truncated for brief in briefs),
        "rollout/unjudged": len(briefs) - len(judged),
        "rollout/tokens": tokens,
        "groups/all_right": _mean(min(values) == 1 for values in groups.values()),
        "groups/all_wrong": _mean(max(values) != 1 for values in groups.values()),
        "groups/constant": _mean(group in constant for group in rewards),
        "groups/constant_tokens": sum(b.tokens for b in judged if b.group in constant) / max(tokens, 1),
        "groups/dropped": experience.dropped_groups,
        "groups/resample_rounds": experience.resample_rounds,
        "length/mean": _mean(brief.tokens for brief in briefs),
        "length/right": _mean(brief.tokens for brief in right),
        "length/wrong": _mean(brief.tokens for brief in wrong),
    }
    for name in briefs[0].marks:
        if name != "accuracy":
            metrics[f"behaviour/{name}"] = _mean(brief.marks[name] for brief in briefs)
    for part in (*RULE_PARTS, *LEARNED_PARTS):
        scored = [brief.parts[part] for brief in briefs if part in brief.parts]
        if scored:
            metrics[f"reward/{part}"] = _mean(scored)
    return metrics


def heldout_metrics(
    sampler: RolloutEngine,
    policy: Policy,
    problems: list[Problem],
    cfg: ExperienceConfig,
    context: Context,
    step: int,
    judge: Judge | None = None,
) -> Metrics:
    """pass@k for small k, reward, length and behaviour on held-out problems, by suite; with a judge also what it says
    beside the rules."""
    noise_key = (cfg.seed, f"{context.stage}/heldout", step)
    shard = (context.rank, context.world_size)
    groups = answer_problems(
        sampler,
        policy,
        problems,
        cfg.monitor_samples,
        sampling_of(cfg),
        noise_key,
        cfg.reward,
        shard,
        lambda answered: None,
        judge=judge,
    )
    surprises = [-sum(rollout.sampler_logps) for group in groups for rollout in group.rollouts]
    mine = [row | {"surprise": nats} for row, nats in zip(response_rows(groups), surprises, strict=True)]
    rows = gather_objects(mine)
    rows.sort(key=lambda row: (row["problem_id"], row["sample_index"]))  # whatever the ranks, sums have one order
    metrics: Metrics = {}
    for suite in sorted({row["suite"] for row in rows}):
        mine = [row for row in rows if row["suite"] == suite]
        numbers = {"reward": _mean(row["score"] for row in mine if row["score"] is not None), **response_means(mine)}
        numbers |= _heldout_groups(mine)
        results = problem_results(mine)
        for k in (1, 2, 4, 8):
            reached = [pass_at_k(result["n"], result["c"], k) for result in results if result["n"] >= k]
            if reached:
                numbers[f"pass@{k}"] = _mean(reached)
        for part in LEARNED_PARTS:
            if scored := [row["parts"][part] for row in mine if part in row["parts"]]:
                numbers[part] = _mean(scored)
        metrics |= {f"heldout/{suite}/{name}": value for name, value in numbers.items()}
    return metrics | gaming_metrics(rows, problems)


def _heldout_groups(rows: list[dict[str, Any]]) -> Metrics:
    """As of the groups of a rollout. entropy: -log p of sampled tokens, whose mean is the entropy, nats a token."""
    judged = [row for row in rows if row["score"] is not None]
    scores: dict[str, list[float]] = defaultdict(list)
    right: dict[str, list[bool]] = defaultdict(list)
    for row in judged:
        scores[row["problem_id"]].append(row["score"])
        right[row["problem_id"]].append(row["right"])
    return {
        "within_group_std": _mean(float(np.std(values)) for values in scores.values()),
        "all_right": _mean(all(values) for values in right.values()),
        "all_wrong": _mean(not any(values) for values in right.values()),
        "entropy": sum(row["surprise"] for row in rows) / max(sum(row["tokens"] for row in rows), 1),
    }


def sample_rows(rows: list[Row], n: int) -> list[dict[str, object]]:
    """A few responses for people: the first of the first groups."""
    first = [row for row in rows if row.rollout.sample_index == 0][:n]
    return [
        {
            "problem_id": row.problem.id,
            "suite": row.problem.suite,
            "prompt": row.problem.messages[-1]["content"],
            "response": row.rollout.text,
            "answer": row.problem.answer,
            "reward": row.reward if row.reward == row.reward else None,
            "parts": row.rollout.score.parts if row.rollout.score else {},
            "tokens": len(row.rollout.response_ids),
            "truncated": row.rollout.truncated,
        }
        for row in first
    ]


def monitor_now(step: int, cfg: ExperienceConfig) -> bool:
    """At the first rollout of each monitoring interval; rollouts start every few steps."""
    return step % cfg.monitor_every_steps < cfg.updates_per_rollout * cfg.epochs_per_rollout


def check_sync(metrics: Metrics, cfg: ExperienceConfig) -> None:
    """Right after a weight sync sampler and trainer must agree; where not, the sampler has stale or other weights."""
    gap = metrics.get("train/sampler_gap", 0.0)
    if gap > cfg.sync_tolerance:
        raise StageFailed(
            f"sampler and trainer log-probs differ by {gap:.2e} a token after a weight sync "
            f"(sync_tolerance={cfg.sync_tolerance:g}): the sampler does not run on the trainer's weights"
        )


def show_progress(latest: Metrics, step: int, cfg: ExperienceConfig, context: Context) -> None:
    context.progress(
        step,
        cfg.steps,
        reward=latest["reward/mean"],
        accuracy=latest["rollout/accuracy"],
        length=latest["length/mean"],
        tokens_per_second=latest["rollout/tokens"] / max(latest["time/sample_seconds"], 1e-9),
    )


def _mean(values: Iterable[float]) -> float:
    """Mean; NaN (written as null) of nothing."""
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers) if numbers else float("nan")
