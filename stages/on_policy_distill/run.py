"""The loop of on-policy distillation: sample -> score -> batches -> the teacher reads -> update -> log -> checkpoint.

Differs from stages/rl in who judges: a teacher, on every token of what the student wrote, instead of a rule on its end.
Rewards are watched all the same. The teacher is frozen, partitioned as a reference is, and never generates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.on_policy_distill.config import OnPolicyDistillConfig
from stages.on_policy_distill.update import Reading, assign_rewards, readings_of, update
from stages.parts.data.audit import Row as AuditRow
from stages.parts.data.audit import check_first_step
from stages.parts.data.conversations import load_conversations
from stages.parts.experience.collect import Experience, collect
from stages.parts.experience.empty_steps import empty_so_far, tell_empty_steps
from stages.parts.experience.monitors import (
    check_sync,
    heldout_metrics,
    monitor_now,
    rollout_metrics,
    sample_rows,
    show_progress,
)
from stages.parts.experience.order import training_problems
from stages.parts.experience.progress import Progress, after_update, restore, rows_in_turn
from stages.parts.policy.examples import Source, encode_source, examples_of_step
from stages.parts.policy.memory import PeakMemory
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.soft_targets import load_teacher
from stages.parts.policy.train_engine import TrainEngine, build_engine
from stages.parts.rollouts.engine import transformers_engine


@dataclass
class DistillProgress(Progress):
    teacher_tokens: float = 0.0  # read so far


def run(cfg: OnPolicyDistillConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `student` on its own samples (and on `data`); returns the metrics of the last step."""
    memory, path = PeakMemory(), inputs["student"].path
    policy = load_policy(path, cfg.dtype)
    engine = build_engine(policy, cfg, context)
    # Where the trainer's parameters are in pieces the sampler has a whole copy, refreshed once a rollout.
    sampler = transformers_engine(load_policy(path, cfg.dtype) if engine.sharded else policy)
    targets = load_teacher(inputs["teacher"].path, policy, path, cfg)
    pools, heldout = training_problems(cfg, inputs["problems"].path)
    sources = _sources(cfg, inputs, policy)
    progress = _resume(context, engine)
    while progress.step < cfg.steps:
        clock, metrics = time.monotonic(), {}
        if progress.experience is None:
            if engine.sharded:
                sampler.load_weights(engine.full_state())
            if monitor_now(progress.step, cfg):
                metrics |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step)
            start = time.monotonic()
            experience = _experience(sampler, policy, pools, progress, cfg, context)
            if experience.briefs:
                metrics |= rollout_metrics(experience) | {"time/sample_seconds": time.monotonic() - start}
            assign_rewards(experience, engine, cfg)
            context.samples(progress.step, sample_rows(experience.rows, 4))
            progress.experience, progress.position = experience, 0
        readings = _readings(progress, sources, cfg, context)
        if progress.step == 0:
            metrics |= _look_at_first_step(readings, policy, context)
        rate = learning_rate(progress.step, cfg)
        metrics |= update(readings, engine, targets, cfg, rate) | {"train/learning_rate": rate}
        metrics |= empty_so_far(progress.latest, metrics)
        if progress.position == 0:
            check_sync(metrics, cfg)
        metrics["time/step_seconds"] = time.monotonic() - clock
        progress.step, progress.position = progress.step + 1, progress.position + 1
        progress.teacher_tokens += metrics.get("teacher/tokens", 0.0)
        context.log(progress.step, metrics)
        progress.latest |= metrics
        _show(progress, cfg, context)
        after_update(progress, engine, cfg, context, {"teacher_tokens": progress.teacher_tokens})
    tell_empty_steps(progress.latest, cfg, context)
    if engine.sharded:
        sampler.load_weights(engine.full_state())
    progress.latest |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step)
    save_trained(engine, path, cfg, context)
    needed = memory.metrics((policy.model, cfg.engine, True), (targets.teacher.policy.model, cfg.engine, False))
    totals = {"train/steps": float(progress.step), "teacher/total_tokens": progress.teacher_tokens}
    return progress.latest | needed | totals


def _sources(cfg: OnPolicyDistillConfig, inputs: dict[str, Artifact], policy: Policy) -> list[Source]:
    """The conversations of the off-policy share; none where everything is sampled."""
    if not cfg.conversations:
        return []
    rows = load_conversations(inputs["data"].path)
    return [encode_source("data", rows, policy.tokenizer, cfg.max_tokens, cfg.over_length)]


def _experience(
    sampler: Any, policy: Policy, pools: Any, progress: Progress, cfg: OnPolicyDistillConfig, context: Context
) -> Experience:
    """The student's own sequences for updates_per_rollout steps."""
    if cfg.sampled_prompts == 0:
        return Experience([], [], [], [[] for _ in range(cfg.updates_per_rollout)])
    share = replace(cfg, prompts_per_step=cfg.sampled_prompts)
    return collect(sampler, policy, pools, progress.cursor, share, context, progress.step)


def _readings(progress: Progress, sources: list[Source], cfg: OnPolicyDistillConfig, context: Context) -> list[Reading]:
    """This rank's sequences of the step: the next mini-batch of the rollout in use, and the step's conversations."""
    counts = [cfg.conversations] if sources else []
    examples = examples_of_step(sources, counts, cfg.seed, progress.step)
    return readings_of(rows_in_turn(progress), examples[context.rank :: context.world_size])


def _look_at_first_step(readings: list[Reading], policy: Policy, context: Context) -> Metrics:
    """What the loss sees, checked before anything is trained on it. What the student writes is its own business."""
    if not readings:
        return {}
    rows = [
        AuditRow(
            reading.ids,
            [bool(flag) for flag in reading.mask],
            None if reading.row is None else reading.mask,
            reading.row is not None and reading.row.rollout.truncated,
        )
        for reading in readings
    ]
    result = check_first_step(rows, policy.tokenizer, policy.end_ids)
    for note in result.notes:
        context.note(f"first step: {note}")
    return result.metrics()


def _show(progress: Progress, cfg: OnPolicyDistillConfig, context: Context) -> None:
    if "reward/mean" in progress.latest:
        show_progress(progress.latest, progress.step, cfg, context)
    else:
        context.progress(progress.step, cfg.steps, loss=progress.latest.get("train/loss", 0.0))


def _resume(context: Context, engine: TrainEngine) -> DistillProgress:
    progress = DistillProgress()
    state = restore(progress, context, engine)
    if state is not None:
        progress.teacher_tokens = state["teacher_tokens"]
    return progress
