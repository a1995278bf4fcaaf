"""The RL loop: generate -> score -> advantages -> batches -> update -> sync -> log -> checkpoint.

Differs from the textbook: one rollout feeds several optimizer steps (that is what makes the clip act), a checkpoint may
fall between them and then carries the rollout, and the reference is this stage's own input model. GRPO:
arXiv:2402.03300; what differs from algorithm to algorithm stands in stages/parts/losses/algorithms.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.parts.experience.collect import collect
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
from stages.parts.experience.order import training_problems
from stages.parts.experience.progress import Progress, after_update, restore, rows_in_turn
from stages.parts.policy.checkpoint import checkpoint_tensors
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
class RLProgress(Progress):
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
        _reset_reference(progress, engine, reference, cfg)
        after_update(progress, engine, cfg, context, tensors=progress.reference_state)
    tell_empty_steps(progress.latest, cfg, context)
    if engine.sharded:
        sampler.load_weights(engine.full_state())
    progress.latest |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step, judge)
    save_trained(engine, inputs["policy"].path, cfg, context)
    scorers = [scorer for scorer in (reference, judge.scorer if judge is not None else None) if scorer is not None]
    frozen = [(scorer.policy.model, cfg.engine, False) for scorer in scorers]
    needed = memory.metrics((policy.model, cfg.engine, True), *frozen)
    return progress.latest | needed | {"train/steps": progress.step}


def _one_update(progress: RLProgress, engine: TrainEngine, cfg: RLConfig, context: Context) -> Metrics:
    """One optimizer step on the next mini-batch of the rollout in use."""
    rate = learning_rate(progress.step, cfg)
    metrics = update(rows_in_turn(progress), engine, cfg, rate)
    if progress.position == 0:
        check_sync(metrics, cfg)
    progress.step += 1
    progress.position += 1
    return metrics | {"train/learning_rate": rate} | empty_so_far(progress.latest, metrics)


def _reset_reference(progress: RLProgress, engine: TrainEngine, reference: Reference | None, cfg: RLConfig) -> None:
    """Iterative GRPO: every so many steps the policy becomes the reference."""
    every = cfg.algorithm.reference_reset_steps
    if reference is not None and every and progress.step % every == 0:
        progress.reference_state = {name: tensor.detach().cpu().clone() for name, tensor in engine.full_state().items()}
        reference.load_state(progress.reference_state)


def _resume(context: Context, engine: TrainEngine, reference: Reference | None) -> RLProgress:
    progress = RLProgress()
    if restore(progress, context, engine) is not None:
        progress.reference_state = checkpoint_tensors(context, progress.step)
    if reference is not None and progress.reference_state:
        reference.load_state(progress.reference_state)
    return progress
