"""The RL loop: generate -> score -> advantages -> batches -> update -> sync -> log -> checkpoint.

Differs from the textbook: one rollout feeds several optimizer steps (that is what makes the clip act), a checkpoint may
fall between them and then carries the rollout, and the reference is this stage's own input model. GRPO:
arXiv:2402.03300; what differs from algorithm to algorithm stands in stages/parts/losses/algorithms.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.artifacts import Artifact, Interrupted
from pipeline.tracking import Context, Metrics
from stages.parts.experience.collect import Experience, collect
from stages.parts.experience.empty_steps import empty_so_far, tell_empty_steps
from stages.parts.experience.first_step import look_at_first_rollout
from stages.parts.experience.gaming import check_parts
from stages.parts.experience.monitors import (
    check_sync,
    heldout_metrics,
    monitor_now,
    rollout_metrics,
    sample_rows,
    show_progress,
)
from stages.parts.experience.order import Cursor, training_problems
from stages.parts.experience.resume import experience_state, restored_experience
from stages.parts.policy.checkpoint import checkpoint_tensors, load_checkpoint, save_checkpoint
from stages.parts.policy.distributed import any_rank
from stages.parts.policy.judge import load_judge
from stages.parts.policy.memory import PeakMemory
from stages.parts.policy.model import load_policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.reference import Reference, load_reference
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.train_engine import TrainEngine, build_engine
from stages.parts.rollouts.engine import transformers_engine
from stages.rl.config import RLConfig
from stages.rl.update import assign_advantages, resample_rounds, score_logps, update


@dataclass
class Progress:
    """Everything that a resumed stage needs beside weights and optimizer."""

    step: int = 0  # optimizer steps done
    cursor: Cursor = field(default_factory=dict)  # problems drawn a suite
    experience: Experience | None = None  # the rollout in use
    position: int = 0  # updates of it that are done
    latest: Metrics = field(default_factory=dict)  # the last value of every metric
    reference_state: dict[str, Tensor] = field(default_factory=dict)  # weights of a reference that was reset


def run(cfg: RLConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `policy` on `problems`; returns the metrics of the last step."""
    memory = PeakMemory()
    policy = load_policy(inputs["policy"].path, cfg.dtype)
    engine = build_engine(policy, cfg, context)
    # Where the trainer's parameters are in pieces the sampler has a whole copy, refreshed once a rollout.
    sampler = transformers_engine(load_policy(inputs["policy"].path, cfg.dtype) if engine.sharded else policy)
    reference = load_reference(inputs["policy"].path, cfg, context) if cfg.algorithm.beta > 0 else None
    judge = load_judge(inputs["reward_model"].path, cfg) if "reward_model" in inputs else None
    pools, heldout = training_problems(cfg, inputs["problems"].path)
    check_parts(pools, judge)
    progress = _resume(context, engine, reference)
    while progress.step < cfg.steps:
        clock, metrics = time.monotonic(), {}
        if progress.experience is None:
            if engine.sharded:
                sampler.load_weights(engine.full_state())
            if monitor_now(progress.step, cfg):
                metrics |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step, judge)
            start = time.monotonic()
            rounds = resample_rounds(cfg)
            experience = collect(sampler, policy, pools, progress.cursor, cfg, context, progress.step, rounds, judge)
            metrics |= rollout_metrics(experience) | {"time/sample_seconds": time.monotonic() - start}
            score_logps(experience, engine, reference, cfg)
            metrics |= assign_advantages(experience, policy, cfg)
            if progress.step == 0:
                metrics |= look_at_first_rollout(experience.rows, policy, context)
            context.samples(progress.step, sample_rows(experience.rows, 4))
            progress.experience, progress.position = experience, 0
        metrics |= _one_update(progress, engine, cfg, context)
        metrics["time/step_seconds"] = time.monotonic() - clock
        context.log(progress.step, metrics)
        progress.latest |= metrics
        show_progress(progress.latest, progress.step, cfg, context)
        _after_update(progress, engine, reference, cfg, context)
    tell_empty_steps(progress.latest, cfg, context)
    if engine.sharded:
        sampler.load_weights(engine.full_state())
    progress.latest |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step, judge)
    save_trained(engine, inputs["policy"].path, cfg, context)
    scorers = [scorer for scorer in (reference, judge.scorer if judge is not None else None) if scorer is not None]
    frozen = [(scorer.policy.model, cfg.engine, False) for scorer in scorers]
    needed = memory.metrics((policy.model, cfg.engine, True), *frozen)
    return progress.latest | needed | {"train/steps": progress.step}


def _one_update(progress: Progress, engine: TrainEngine, cfg: RLConfig, context: Context) -> Metrics:
    """One optimizer step on the next mini-batch of the rollout in use."""
    experience = progress.experience
    assert experience is not None
    groups = set(experience.minibatches[progress.position % len(experience.minibatches)])
    rows = [row for row in experience.rows if row.group in groups]
    rate = learning_rate(progress.step, cfg)
    metrics = update(rows, engine, cfg, rate)
    if progress.position == 0:
        check_sync(metrics, cfg)
    progress.step += 1
    progress.position += 1
    return metrics | {"train/learning_rate": rate} | empty_so_far(progress.latest, metrics)


def _after_update(
    progress: Progress, engine: TrainEngine, reference: Reference | None, cfg: RLConfig, context: Context
) -> None:
    """End of a rollout, reference reset, checkpoint, stop request."""
    experience = progress.experience
    assert experience is not None
    if progress.position == len(experience.minibatches) * cfg.epochs_per_rollout:
        progress.experience = None
    every = cfg.algorithm.reference_reset_steps
    if reference is not None and every and progress.step % every == 0:
        progress.reference_state = {name: tensor.detach().cpu().clone() for name, tensor in engine.full_state().items()}
        reference.load_state(progress.reference_state)
    stop = any_rank(context.stop.is_set())
    if stop or (progress.step % cfg.save_every_steps == 0 and progress.step < cfg.steps):
        save_checkpoint(context, progress.step, engine, _state(progress), progress.reference_state)
    if stop:
        raise Interrupted(f"stopped after step {progress.step} of {cfg.steps}, checkpoint written")


def _state(progress: Progress) -> dict[str, Any]:
    """Progress as JSON; the rollout in use goes with it."""
    kept: dict[str, Any] = {name: getattr(progress, name) for name in ("cursor", "position", "latest")}
    return kept | {"experience": experience_state(progress.experience)}


def _resume(context: Context, engine: TrainEngine, reference: Reference | None) -> Progress:
    found = load_checkpoint(context, engine)
    if found is None:
        return Progress()
    step, state = found
    tensors = checkpoint_tensors(context, step)
    experience = restored_experience(state["experience"], context)
    progress = Progress(step, state["cursor"], experience, state["position"], state["latest"], tensors)
    if reference is not None and progress.reference_state:
        reference.load_state(progress.reference_state)
    return progress
