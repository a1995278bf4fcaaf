"""pass@k of a model on held-out problems.

Sampled at the recipe's temperature rather than greedily (arXiv:2501.12948: greedy repeats itself and varies), with
noise that depends on the evaluation's seed, the problem and the sample alone: two models are compared on the same
problems and the same noise, so their difference is paired. Ranks share out the problems; rank 0 writes.
"""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.modes import Asker, mode_metrics, mode_results, mode_rows
from stages.parts.data.problems import load_problems
from stages.parts.evaluation.suites import Row, problem_results, response_rows, suite_metrics
from stages.parts.policy.distributed import gather_objects, stop_if_asked
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.selection import choose
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig

SHOWN = 3  # responses a suite in samples.jsonl


def run(cfg: EvaluateConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    problems = _held_out(cfg, inputs["problems"].path)
    policy = load_policy(inputs["model"].path)

    def between(answered: int) -> None:
        context.progress(answered, len(problems))
        stop_if_asked(context, "evaluation")

    engine = transformers_engine(policy)
    groups = answer_problems(
        engine,
        policy,
        problems,
        cfg.samples,
        SamplingConfig(cfg.temperature, cfg.top_p, 0, cfg.max_response_tokens),
        (cfg.seed, "evaluate", 0),
        RewardConfig(require_box=cfg.require_box),
        (context.rank, context.world_size),
        between,
    )
    place = {problem.id: index for index, problem in enumerate(problems)}
    rows = sorted(
        gather_objects(response_rows(groups)), key=lambda row: (place[row["problem_id"]], row["sample_index"])
    )
    metrics = suite_metrics(rows, cfg.ks, cfg.seed)
    _write(cfg, rows, context)
    if cfg.modes or cfg.budgets:
        asker = Asker(cfg, engine, policy, (context.rank, context.world_size), between)
        found = gather_objects(mode_rows(asker, problems))
        settings = list(dict.fromkeys(row["setting"] for row in found))
        found.sort(key=lambda row: (settings.index(row["setting"]), place[row["problem_id"]], row["sample_index"]))
        metrics |= mode_metrics(found)
        if context.is_main:
            lines = "".join(json.dumps(line) + "\n" for line in mode_results(found))
            (context.output("results") / "modes.jsonl").write_text(lines, encoding="utf-8")
    context.log(0, metrics)
    return metrics


def _held_out(cfg: EvaluateConfig, folder: Path) -> list[Problem]:
    """At most max_problems of every suite, in the order of the file."""
    problems = []
    for suite in cfg.suites:
        problems += choose(load_problems(folder, cfg.split, [suite]), cfg.max_problems, cfg.seed)
    if not problems:
        raise StageFailed(f"there are no {cfg.split} problems of the suites {', '.join(cfg.suites)}")
    return problems


def _write(cfg: EvaluateConfig, rows: list[Row], context: Context) -> None:
    results = problem_results(rows)
    context.declare("responses", rows=len(rows))
    context.declare("results", rows=len(results), split=cfg.split)
    if context.is_main:
        stored = [row | {"parts": json.dumps(row["parts"], sort_keys=True)} for row in rows]
        for path, lines in (
            (context.output("responses") / "train.jsonl", stored),
            (context.output("results") / "results.jsonl", results),
        ):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for suite in cfg.suites:
        first = [row for row in rows if row["suite"] == suite and row["sample_index"] == 0][:SHOWN]
        context.samples(0, [row | {"response": row["text"]} for row in first])
