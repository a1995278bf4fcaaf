"""From scored responses to the numbers of a suite. numpy only.

A response is a row of `dataset:rollouts`: problem_id, suite, family, sample_index, prompt, text, tokens, truncated,
score, right, parts. A response that cannot be judged (score None: the gold's or the verifier's fault) leaves pass@k
and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.statistics import Estimate, estimate, pass_at_k
from stages.parts.evaluation.behaviour import measure_behaviour
from stages.parts.rollouts.types import RolloutGroup

Row = dict[str, Any]


def response_rows(groups: list[RolloutGroup]) -> list[Row]:
    """One row a response, `parts` still a dictionary. right: the verifier accepts the answer in full."""
    rows = []
    for group in groups:
        for rollout in group.rollouts:
            assert rollout.score is not None
            rows.append(
                {
                    "problem_id": group.problem.id,
                    "suite": group.problem.suite,
                    "family": group.problem.family,
                    "sample_index": rollout.sample_index,
                    "prompt": group.problem.messages[-1]["content"],
                    "text": rollout.text,
                    "tokens": len(rollout.response_ids),
                    "truncated": rollout.truncated,
                    "score": rollout.score.value,
                    "right": rollout.score.parts.get("accuracy", 0.0) >= 1.0,
                    "parts": rollout.score.parts,
                }
            )
    return rows


def problem_results(rows: list[Row]) -> list[Row]:
    """Per problem, in order of first appearance: n judged responses, c right ones of them."""
    results: dict[str, Row] = {}
    for row in rows:
        empty = {name: row[name] for name in ("problem_id", "suite", "family")} | {"n": 0, "c": 0}
        result = results.setdefault(row["problem_id"], empty)
        if row["score"] is not None:
            result["n"] += 1
            result["c"] += row["right"]
    return list(results.values())


def suite_metrics(rows: list[Row], ks: list[int], seed: int = 0) -> dict[str, float]:
    """Metrics `<suite>/<name>` of every suite in the rows. What has no responses to be counted on is left out."""
    metrics: dict[str, float] = {}
    for suite in sorted({row["suite"] for row in rows}):
        mine = [row for row in rows if row["suite"] == suite]
        results = problem_results(mine)
        numbers = {"problems": float(len(results))}
        for k in ks:
            numbers |= _named(f"pass@{k}", pass_interval(results, k, seed))
        for family in sorted({result["family"] for result in results}):
            of_family = [result for result in results if result["family"] == family]
            interval = pass_interval(of_family, 1, seed)
            if interval is not None:
                numbers[f"{family}/pass@1"] = interval.mean
        numbers |= response_means(mine)
        metrics |= {f"{suite}/{name}": value for name, value in numbers.items()}
    return metrics


def pass_interval(results: list[Row], k: int, seed: int = 0) -> Estimate | None:
    """pass@k over the problems with at least k judged responses; None where there is no such problem."""
    values = [pass_at_k(result["n"], result["c"], k) for result in results if result["n"] >= k]
    return estimate(values, seed) if values else None


def response_means(rows: list[Row]) -> dict[str, float]:
    """Length in tokens, shares of truncated, well-formed, reasoned and reflecting responses, language consistency."""
    judged = [row for row in rows if row["score"] is not None]
    behaviours = [measure_behaviour(row["text"]) for row in rows]
    values: dict[str, Iterable[float]] = {
        "length": (row["tokens"] for row in rows),
        "length_right": (row["tokens"] for row in judged if row["right"]),
        "length_wrong": (row["tokens"] for row in judged if not row["right"]),
        "truncated": (row["truncated"] for row in rows),
        "format": (row["parts"]["format"] for row in rows),
        "language": (row["parts"]["language"] for row in rows),
        "reasoned": (behaviour["reasoned"] for behaviour in behaviours),
        "reflection": (behaviour["reflection"] for behaviour in behaviours),
    }
    lists = {name: [float(value) for value in series] for name, series in values.items()}
    means = {name: sum(series) / len(series) for name, series in lists.items() if series}
    return means | {"unjudged": float(len(rows) - len(judged))}


def _named(name: str, interval: Estimate | None) -> dict[str, float]:
    if interval is None:
        return {}
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
