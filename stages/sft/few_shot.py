"""Demonstrations where a dataset has none: sampled from the policy itself, a few worked examples before each problem.

This is how DeepSeek-R1 got part of its cold start (arXiv:2501.12948, section 2.3.1). A response is kept if it is right
by the problem's own verifier, ended by itself, is one closed think block and a boxed answer, and stays in the prompt's
language; of a problem's kept ones the shortest is taken. The examples are not part of what is learned.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.problems import load_problems
from stages.parts.policy.distributed import barrier, gather_objects, stop_if_asked
from stages.parts.policy.model import Policy
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.types import Problem, Rollout
from stages.parts.verifiers.config import RewardConfig
from stages.sft.config import SFTConfig

MIN_LANGUAGE = 0.9  # share of the reasoning's words in the prompt's language

WORKED = (
    (
        "A box holds 3 red and 4 blue pens. How many pens are in 2 such boxes?",
        "<think>One box holds 3 + 4 = 7 pens. Two boxes hold 2 * 7 = 14 pens.</think>\\boxed{14}",
    ),
    (
        "What is 15 - 4 + 2?",
        "<think>From left to right: 15 - 4 = 11, then 11 + 2 = 13.</think>\\boxed{13}",
    ),
    (
        "Ana is 12 years old, twice as old as Ben. How old will Ben be in 5 years?",
        "<think>Ben is 12 / 2 = 6 now. In 5 years he will be 6 + 5 = 11.</think>\\boxed{11}",
    ),
    (
        "Solve for x: 3x + 2 = 20.",
        "<think>Subtract 2: 3x = 18. Divide by 3: x = 6. Check: 3 * 6 + 2 = 20.</think>\\boxed{6}",
    ),
)


def few_shot_conversations(
    cfg: SFTConfig, policy: Policy, inputs: dict[str, Artifact], context: Context
) -> tuple[list[dict[str, Any]], Metrics]:
    """Kept demonstrations and what was counted; sampled once, then read back by a stage that resumes."""
    folder = context.workdir / "few_shot"
    problems = load_problems(inputs["problems"].path, "train", [cfg.few_shot_suite])
    problems = random.Random(f"{cfg.seed}/few_shot").sample(problems, min(cfg.few_shot_problems, len(problems)))
    if not folder.exists():
        kept = _sample(cfg, policy, problems, examples(cfg, inputs), context)
        if context.is_main:
            save_conversations(folder.with_suffix(".draft"), kept)
            folder.with_suffix(".draft").replace(folder)
        barrier()
    rows = load_conversations(folder)
    sampled = len(problems) * cfg.few_shot_samples
    if not rows:
        raise StageFailed(
            f"none of {sampled} few-shot responses to {len(problems)} problems was right and readable; take easier"
            f" problems, or data with solutions and stages.{context.stage}.source=data"
        )
    return rows, {"few_shot/sampled": float(sampled), "few_shot/kept": float(len(rows))}


def examples(cfg: SFTConfig, inputs: dict[str, Artifact]) -> list[dict[str, str]]:
    """The worked examples as turns: rows of `data` where that is wired and has some, else those written here."""
    rows = load_conversations(inputs["data"].path) if "data" in inputs else []
    if rows:
        chosen = random.Random(f"{cfg.seed}/examples").sample(rows, min(cfg.few_shot_examples, len(rows)))
        return [message for row in chosen for message in row["messages"]]
    pairs = WORKED[: cfg.few_shot_examples]
    return [{"role": role, "content": text} for pair in pairs for role, text in zip(("user", "assistant"), pair)]


def _sample(
    cfg: SFTConfig, policy: Policy, problems: list[Problem], shots: list[dict[str, str]], context: Context
) -> list[dict[str, Any]]:
    def between(answered: int) -> None:
        stop_if_asked(context, "sampling demonstrations")

    shard = context.rank, context.world_size
    groups = answer_problems(
        transformers_engine(policy),
        policy,
        [replace(problem, messages=[*shots, *problem.messages]) for problem in problems],
        cfg.few_shot_samples,
        cfg.few_shot_sampling,
        (cfg.seed, context.stage, 0),
        RewardConfig(accuracy=1.0),
        shard,
        between,
    )
    kept = {}
    for problem, group in zip(problems[context.rank :: context.world_size], groups, strict=True):
        readable = [rollout for rollout in group.rollouts if is_demonstration(rollout)]
        if readable:
            text = min(readable, key=lambda rollout: len(rollout.response_ids)).text
            turns = [*problem.messages, {"role": "assistant", "content": text}]
            kept[problem.id] = {"messages": turns, "problem_id": problem.id, "suite": problem.suite}
    everyone = dict(gather_objects(list(kept.items())))
    return [everyone[problem.id] for problem in problems if problem.id in everyone]


def is_demonstration(rollout: Rollout) -> bool:
    """Right, ended by itself, well formed, in one language."""
    score = rollout.score
    if score is None or score.value is None or rollout.truncated or rollout.forced:
        return False
    parts = score.parts
    return parts["accuracy"] == 1.0 and parts["format"] == 1.0 and parts["language"] >= MIN_LANGUAGE
