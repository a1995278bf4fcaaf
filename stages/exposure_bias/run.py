"""Student and teacher answer the same held-out problems; at every token of both texts the two are compared.

    own        mean over tokens that the student wrote of KL(teacher || student), and of KL(student || teacher)
    teacher's  the same over tokens that the teacher wrote
    gap        own - teacher's, paired over problems, with its 95% interval

Ranks share out the problems; rank 0 writes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from pipeline.artifacts import Artifact, StageFailed
from pipeline.statistics import paired_difference
from pipeline.tracking import Context, Metrics
from stages.exposure_bias.config import ExposureBiasConfig
from stages.parts.data.problems import load_problems
from stages.parts.policy.batch import TokenBatch, microbatches, pad_batch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.distributed import gather_objects, stop_if_asked
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.scoring import Compare, Scorer
from stages.parts.policy.soft_targets import Divergence, OnlineTargets, load_teacher
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.selection import choose
from stages.parts.rollouts.types import Problem, RolloutGroup
from stages.parts.verifiers.config import RewardConfig

MEASURES = ("forward_kl", "reverse_kl", "nll")  # nats a token; nll: of the text's own tokens, under the student
WRITERS = ("own", "teacher")
Row = dict[str, Any]


def run(cfg: ExposureBiasConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    problems = choose(load_problems(inputs["problems"].path, cfg.split, cfg.suites), cfg.max_problems, cfg.seed)
    if not problems:
        raise StageFailed(f"there are no {cfg.split} problems of the suites {', '.join(cfg.suites)}")
    student = load_policy(inputs["student"].path, cfg.dtype)
    whole = TrainedStageConfig(seed=cfg.seed, dtype=cfg.dtype)  # a teacher that answers is not in pieces
    targets = load_teacher(inputs["teacher"].path, student, inputs["student"].path, whole)
    rows: list[Row] = []
    for writer, policy in zip(WRITERS, (student, targets.teacher.policy), strict=True):
        groups = _answers(policy, problems, writer, cfg, context)
        rows += [row | {"writer": writer} for row in _measure(groups, student, targets, cfg)]
    rows = sorted(gather_objects(rows), key=lambda row: (row["problem_id"], row["writer"]))
    metrics = exposure_metrics(rows)
    context.log(0, metrics)
    context.declare("measured", rows=len(rows), split=cfg.split)
    if context.is_main:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (context.output("measured") / "results.jsonl").write_text(text, encoding="utf-8")
    return metrics


def _answers(
    policy: Policy, problems: list[Problem], writer: str, cfg: ExposureBiasConfig, context: Context
) -> list[RolloutGroup]:
    def between(answered: int) -> None:
        context.progress(answered + (len(problems) if writer == "teacher" else 0), 2 * len(problems))
        stop_if_asked(context, "measuring")

    return answer_problems(
        transformers_engine(policy),
        policy,
        problems,
        cfg.samples,
        SamplingConfig(cfg.temperature, cfg.top_p, 0, cfg.max_response_tokens),
        (cfg.seed, f"exposure_bias/{writer}", 0),
        RewardConfig(),
        (context.rank, context.world_size),
        between,
    )


@torch.no_grad()
def _measure(groups: list[RolloutGroup], student: Policy, targets: OnlineTargets, cfg: ExposureBiasConfig) -> list[Row]:
    """Sums over the tokens of each problem's responses."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scorer, sums = Scorer(student.model), {group.problem.id: [0.0] * (1 + len(MEASURES)) for group in groups}
    for members in microbatches([len(r.prompt_ids) + len(r.response_ids) for r in rollouts], cfg.tokens_per_microbatch):
        chosen = [rollouts[index] for index in members]
        masks = [[0.0] * len(r.prompt_ids) + [1.0] * len(r.response_ids) for r in chosen]
        batch = pad_batch([r.prompt_ids + r.response_ids for r in chosen], masks, student.pad_id, student.device)
        compare = _both(targets, batch, cfg.temperature)
        logps_BT, *_, compared_BT2 = scorer(batch, cfg.temperature, False, compare=compare)
        told_BT = torch.cat([batch.mask_BT[..., None], compared_BT2, -logps_BT[..., None]], dim=-1)
        for rollout, numbers in zip(chosen, told_BT.double().sum(dim=1).tolist(), strict=True):
            sums[rollout.problem_id] = [a + b for a, b in zip(sums[rollout.problem_id], numbers, strict=True)]
    return [
        {"problem_id": group.problem.id, "suite": group.problem.suite}
        | dict(zip(("tokens", *MEASURES), sums[group.problem.id], strict=True))
        for group in groups
    ]


def _both(targets: OnlineTargets, batch: TokenBatch, temperature: float) -> Compare:
    """Forward and reverse KL of every position: [C, 2]."""
    forward, reverse = (targets.compare(batch, Divergence(kind, temperature)) for kind in ("forward_kl", "reverse_kl"))

    def of_chunk(logits_CV: Tensor, chunk: slice) -> Tensor:
        return torch.stack([forward(logits_CV, chunk), reverse(logits_CV, chunk)], dim=-1)

    return of_chunk


def exposure_metrics(rows: list[Row]) -> Metrics:
    """Means over tokens; gaps are means over problems, each of which counts once."""
    metrics: Metrics = {}
    for writer in WRITERS:
        mine = [row for row in rows if row["writer"] == writer]
        tokens = sum(row["tokens"] for row in mine)
        metrics[f"exposure/{writer}_tokens"] = tokens
        for measure in MEASURES:
            metrics[f"exposure/{writer}_{measure}"] = sum(row[measure] for row in mine) / max(tokens, 1.0)
    for measure in ("forward_kl", "reverse_kl"):
        own, teachers = (
            {row["problem_id"]: row[measure] / row["tokens"] for row in rows if row["writer"] == writer}
            for writer in WRITERS
        )
        gap = paired_difference(own, teachers)
        if gap is not None:
            metrics[f"exposure/{measure}_gap"] = gap.mean
            metrics[f"exposure/{measure}_gap_low"], metrics[f"exposure/{measure}_gap_high"] = gap.low, gap.high
    return metrics | {"exposure/problems": float(len({row["problem_id"] for row in rows}))}
