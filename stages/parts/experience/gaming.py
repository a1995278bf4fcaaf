"""Is the reward model being gamed? Its score beside an independent rule, on held-out prompts, as a policy is trained.

A policy that finds what the model likes and people do not shows it in two ways: the score goes up while the rule does
not, and of two responses to one problem the model no longer prefers the one that the rule calls right. Keys are
`preference/<suite>/<name>`; only suites that a reward model scores and a rule judges have them.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.artifacts import StageFailed
from pipeline.tracking import Metrics
from stages.parts.policy.judge import Judge
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import LEARNED_PARTS, RULE_PARTS
from stages.parts.verifiers.reward import parts_of

ALMOST = 1e-12  # keeps a logit finite


def check_parts(pools: dict[str, list[Problem]], judge: Judge | None) -> None:
    """Raises StageFailed where a training problem names a part that nobody here scores."""
    for suite, problems in pools.items():
        for problem in problems:
            for part in parts_of(problem):
                if part not in (*RULE_PARTS, *LEARNED_PARTS):
                    known = ", ".join((*RULE_PARTS, *LEARNED_PARTS))
                    raise StageFailed(f"problem {problem.id} is scored by '{part}': `scored_by` knows {known}")
                if part in LEARNED_PARTS and judge is None:
                    raise StageFailed(
                        f"problem {problem.id} of '{suite}' is scored by {part}, which a reward model tells: wire"
                        " inputs.reward_model, or leave the suite out of `suites`"
                    )


def gaming_metrics(rows: list[dict[str, Any]], problems: list[Problem]) -> Metrics:
    """Of the scored held-out responses (rows of evaluation/suites.py): `score`, the mean chance to be preferred to an
    average response; `logit`, the same without its bound; `rule`, the share that the rule calls right; `agreement`, the
    share of pairs of a right and a wrong response to one problem in which the model prefers the right one;
    `rule_is_rewarded`, 1 where the rule is a part of the reward itself and so no independent witness."""
    metrics: Metrics = {}
    rewarded = {problem.suite for problem in problems if "accuracy" in parts_of(problem)}
    for suite in sorted({row["suite"] for row in rows}):
        mine = [(score, row) for row in rows if row["suite"] == suite and (score := _score(row)) is not None]
        if not mine:
            continue
        numbers = {
            "score": _mean([score for score, _ in mine]),
            "logit": _mean([math.log(max(score, ALMOST) / max(1 - score, ALMOST)) for score, _ in mine]),
            "rule": _mean([float(row["right"]) for _, row in mine]),
            "agreement": _agreement(mine),
            "rule_is_rewarded": float(suite in rewarded),
        }
        metrics |= {f"preference/{suite}/{name}": value for name, value in numbers.items()}
    return metrics


def _score(row: dict[str, Any]) -> float | None:
    """The mean of the learned parts, of a response that a rule judged."""
    learned = [row["parts"][part] for part in LEARNED_PARTS if part in row["parts"]]
    return _mean(learned) if learned and "accuracy" in row["parts"] else None


def _agreement(scored: list[tuple[float, dict[str, Any]]]) -> float:
    by_problem: dict[str, tuple[list[float], list[float]]] = {}
    for score, row in scored:
        by_problem.setdefault(row["problem_id"], ([], []))[bool(row["right"])].append(score)
    return _mean([
        float(right > wrong) + 0.5 * float(right == wrong)
        for wrongs, rights in by_problem.values()
        for wrong in wrongs
        for right in rights
    ])  # fmt: skip


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
