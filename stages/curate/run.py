"""`curate`: ask the policy for answers without thinking, judge every demonstration, keep what passes. A ledger tells
what was dropped and why. Ranks share out the queries; rank 0 writes."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.curate.config import CurateConfig
from stages.curate.filters import KEPT, REASONS, verdict
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.problems import load_problems
from stages.parts.data.splits import normalise
from stages.parts.policy.distributed import gather_objects, stop_if_asked
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig

SHOWN = 2  # demonstrations of every verdict in samples.jsonl


def run(cfg: CurateConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    folder = inputs["problems"].path
    held_out = {
        normalise(problem.messages[-1]["content"])
        for split in ("dev", "test")
        for problem in load_problems(folder, split)
    }
    problems = {problem.id: problem for problem in load_problems(folder, "train")}
    rows = load_conversations(inputs["data"].path)
    queries = list(dict.fromkeys(row["problem_id"] for row in rows if row["problem_id"] in problems))
    shares = direct_shares([problems[name] for name in queries], cfg, inputs, context) if "policy" in inputs else {}
    verdicts = [
        verdict(row, problems.get(row["problem_id"]), held_out, shares.get(row["problem_id"], 0.0), cfg) for row in rows
    ]
    kept = [row for row, said in zip(rows, verdicts, strict=True) if said == KEPT]
    metrics = ledger(rows, verdicts)
    if not kept:
        dropped = ", ".join(f"{count} {reason}" for reason, count in Counter(verdicts).most_common())
        raise StageFailed(f"none of {len(rows)} demonstrations passed the filters: {dropped}")
    _write(rows, kept, verdicts, metrics, context)
    return metrics


def direct_shares(
    problems: list[Problem], cfg: CurateConfig, inputs: dict[str, Artifact], context: Context
) -> dict[str, float]:
    """Of each query, the share of the policy's answers without thinking that are right."""
    policy = load_policy(inputs["policy"].path)

    def between(answered: int) -> None:
        context.progress(answered, len(problems))
        stop_if_asked(context, "answering queries")

    groups = answer_problems(
        transformers_engine(policy),
        policy,
        problems,
        cfg.direct_samples,
        SamplingConfig(cfg.temperature, max_response_tokens=cfg.max_response_tokens),
        (cfg.seed, context.stage, 0),
        RewardConfig(),
        (context.rank, context.world_size),
        between,
        thinking=False,
    )
    mine = []
    for group in groups:
        right = [rollout.score.parts.get("accuracy", 0.0) >= 1.0 for rollout in group.rollouts if rollout.score]
        mine.append((group.problem.id, sum(right) / len(right)))
    return dict(gather_objects(mine))


def ledger(rows: list[dict[str, Any]], verdicts: list[str]) -> Metrics:
    """`ledger/<reason>` as rejection sampling has them; sampled = kept + the sum of the reasons."""
    counts = Counter(verdicts)
    metrics = {"ledger/sampled": float(len(rows)), "ledger/kept": float(counts[KEPT])}
    metrics |= {f"ledger/{reason}": float(counts[reason]) for reason in REASONS}
    kept = {row["problem_id"] for row, said in zip(rows, verdicts, strict=True) if said == KEPT}
    return metrics | {
        "ledger/problems": float(len({row["problem_id"] for row in rows})),
        "ledger/problems_kept": float(len(kept)),
        "ledger/kept_share": counts[KEPT] / max(len(rows), 1),
    }


def _write(
    rows: list[dict[str, Any]], kept: list[dict[str, Any]], verdicts: list[str], metrics: Metrics, context: Context
) -> None:
    context.declare("kept", rows=len(kept))
    context.declare("ledger", rows=len(rows))
    context.log(0, metrics)
    for said in (KEPT, *REASONS):
        found = [row for row, other in zip(rows, verdicts, strict=True) if other == said][:SHOWN]
        context.samples(0, [
            {"prompt": row["messages"][-2]["content"], "response": row["messages"][-1]["content"], "verdict": said}
            for row in found
        ])  # fmt: skip
    if context.is_main:
        save_conversations(context.output("kept"), kept)
        lines = "".join(
            json.dumps({"problem_id": row["problem_id"], "verdict": said}) + "\n"
            for row, said in zip(rows, verdicts, strict=True)
        )
        (context.output("ledger") / "results.jsonl").write_text(lines, encoding="utf-8")
