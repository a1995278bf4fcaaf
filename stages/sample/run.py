"""Rejection sampling: many responses a problem; the verified, readable, distinct ones become conversations.

Whatever is dropped stands in the ledger with its reason, problem by problem, and the sum is checked. Ranks share out
the problems; rank 0 writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import save_conversations
from stages.parts.data.problems import load_problems
from stages.parts.policy.distributed import gather_objects, stop_if_asked
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.config import sampling_of
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.selection import choose
from stages.parts.rollouts.types import Problem, RolloutGroup
from stages.sample.config import SampleConfig
from stages.sample.ledger import KEPT, conversation, judge_group, ledger_metrics, ledger_row, reasons

SHOWN = 2  # responses of every verdict in samples.jsonl


def run(cfg: SampleConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    problems = _problems(cfg, inputs["problems"].path)
    policy = load_policy(inputs["policy"].path)

    def between(answered: int) -> None:
        context.progress(answered, len(problems))
        stop_if_asked(context, "sampling")

    groups = answer_problems(
        transformers_engine(policy),
        policy,
        problems,
        cfg.samples,
        sampling_of(cfg),
        (cfg.seed, context.stage, 0),
        cfg.reward,
        (context.rank, context.world_size),
        between,
    )
    judged = [_judged(group, cfg, policy.tokenizer) for group in groups]
    place = {problem.id: index for index, problem in enumerate(problems)}
    judged = sorted(gather_objects(judged), key=lambda entry: place[entry["ledger"]["problem_id"]])
    metrics = ledger_metrics([entry["ledger"] for entry in judged], reasons(cfg))
    metrics["sampled/tokens"] = float(sum(entry["tokens"] for entry in judged))  # what the data cost its teacher
    _check(metrics, len(problems) * cfg.samples, reasons(cfg))
    _write([row for entry in judged for row in entry["kept"]], judged, metrics, cfg, context)
    return metrics


def _problems(cfg: SampleConfig, folder: Path) -> list[Problem]:
    """At most max_problems of all suites together."""
    problems = choose(load_problems(folder, "train", cfg.suites), cfg.max_problems, cfg.seed)
    if not problems:
        raise StageFailed(f"there are no train problems of the suites {', '.join(cfg.suites)}")
    return problems


def _judged(group: RolloutGroup, cfg: SampleConfig, tokenizer: Any) -> dict[str, Any]:
    """A group's kept conversations, its line of the ledger, its first response of every verdict, and its tokens."""
    verdicts = judge_group(group, cfg, tokenizer)
    shown: dict[str, dict[str, Any]] = {}
    for rollout, verdict in zip(group.rollouts, verdicts, strict=True):
        text = {
            "prompt": group.problem.messages[-1]["content"],
            "response": rollout.text,
            "answer": group.problem.answer,
        }
        shown.setdefault(
            verdict, {"problem_id": group.problem.id, "suite": group.problem.suite, "verdict": verdict} | text
        )
    kept = [conversation(group, rollout) for rollout, v in zip(group.rollouts, verdicts, strict=True) if v == KEPT]
    tokens = sum(len(rollout.response_ids) for rollout in group.rollouts)
    return {"kept": kept, "ledger": ledger_row(group, verdicts, reasons(cfg)), "shown": shown, "tokens": tokens}


def _check(metrics: Metrics, sampled: int, names: tuple[str, ...]) -> None:
    """Every response is accounted for exactly once, and something was kept."""
    accounted = metrics["ledger/kept"] + sum(metrics[f"ledger/{reason}"] for reason in names)
    if not sampled == accounted == metrics["ledger/sampled"]:
        raise StageFailed(f"the ledger accounts for {accounted:.0f} of {sampled} responses")
    if metrics["ledger/kept"] == 0:
        dropped = {reason: int(metrics[f"ledger/{reason}"]) for reason in names if metrics[f"ledger/{reason}"]}
        why = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise StageFailed(f"none of {sampled} responses was kept: {why}")


def _write(
    kept: list[dict[str, Any]], judged: list[dict[str, Any]], metrics: Metrics, cfg: SampleConfig, context: Context
) -> None:
    context.declare("kept", rows=len(kept))
    context.declare("ledger", rows=len(judged))
    context.log(0, metrics)
    for verdict in (KEPT, *reasons(cfg)):
        context.samples(0, [entry["shown"][verdict] for entry in judged if verdict in entry["shown"]][:SHOWN])
    if context.is_main:
        save_conversations(context.output("kept"), kept)
        lines = "".join(json.dumps(entry["ledger"]) + "\n" for entry in judged)
        (context.output("ledger") / "results.jsonl").write_text(lines, encoding="utf-8")
