"""The PPO loop: generate -> score -> values and advantages -> batches -> update -> sync -> log -> checkpoint.

Differs from stages/rl in what lies between score and update (update.py), and in that two models may be trained. A
checkpoint holds both with their optimizers, and the rollout in use with its values and returns.
"""

from __future__ import annotations

import time
from dataclasses import replace

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
from stages.parts.policy.config import LoRAConfig
from stages.parts.policy.judge import load_judge
from stages.parts.policy.memory import PeakMemory
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.reference import load_reference
from stages.parts.policy.schedule import learning_rate
from stages.parts.policy.train_engine import build_engine
from stages.parts.policy.value_head import add_value_head, load_critic, without_value_head
from stages.parts.rollouts.engine import transformers_engine
from stages.ppo.config import PPOConfig
from stages.ppo.update import Learners, assign_advantages, score_rollout, update


def run(cfg: PPOConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `policy` on `problems`; returns the metrics of the last step. The critic is thrown away."""
    memory, path = PeakMemory(), inputs["policy"].path
    policy = load_policy(path, cfg.dtype)
    learners = build_learners(policy, cfg, inputs, context)
    engine = learners.policy
    # Where the trainer's parameters are in pieces the sampler has a whole copy, refreshed once a rollout.
    sampler = transformers_engine(load_policy(path, cfg.dtype) if engine.sharded else policy)
    reference = load_reference(path, cfg, context) if cfg.algorithm.beta > 0 else None
    judge = load_judge(inputs["reward_model"].path, cfg) if "reward_model" in inputs else None
    pools, heldout = training_problems(cfg, inputs["problems"].path)
    check_parts(pools, judge)
    progress = Progress()
    restore(progress, context, learners)
    while progress.step < cfg.steps:
        clock, metrics = time.monotonic(), {}
        if progress.experience is None:
            if engine.sharded:
                sampler.load_weights(without_value_head(engine.full_state()))
            if monitor_now(progress.step, cfg):
                metrics |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step, judge)
            start = time.monotonic()
            experience = collect(sampler, policy, pools, progress.cursor, cfg, context, progress.step, judge=judge)
            metrics |= rollout_metrics(experience) | {"time/sample_seconds": time.monotonic() - start}
            score_rollout(experience, learners, reference, cfg)
            metrics |= assign_advantages(experience, cfg)
            if progress.step == 0:
                metrics |= look_at_first_rollout(experience.rows, policy, context)
            context.samples(progress.step, sample_rows(experience.rows, 4))
            progress.experience, progress.position = experience, 0
        metrics |= _one_update(progress, learners, cfg)
        metrics["time/step_seconds"] = time.monotonic() - clock
        context.log(progress.step, metrics)
        progress.latest |= metrics
        show_progress(progress.latest, progress.step, cfg, context)
        after_update(progress, learners, cfg, context)
    tell_empty_steps(progress.latest, cfg, context)
    if engine.sharded:
        sampler.load_weights(without_value_head(engine.full_state()))
    progress.latest |= heldout_metrics(sampler, policy, heldout, cfg, context, progress.step, judge)
    save_trained(engine, path, cfg, context)
    held = [(policy.model, cfg.engine, True)]
    if learners.critic is not None:
        held.append((learners.critic.policy.model, cfg.engine, True))
    for scorer in (reference, judge.scorer if judge is not None else None):
        if scorer is not None:
            held.append((scorer.policy.model, cfg.engine, False))
    return progress.latest | memory.metrics(*held) | {"train/steps": progress.step}


def build_learners(policy: Policy, cfg: PPOConfig, inputs: dict[str, Artifact], context: Context) -> Learners:
    """The policy's engine, and the critic's beside it or its head on the policy."""
    if cfg.critic == "head":
        add_value_head(policy.model)
        return Learners(build_engine(policy, cfg, context), None)
    body = load_critic(inputs["policy"].path, cfg.dtype)
    return Learners(build_engine(policy, cfg, context), build_engine(body, critic_config(cfg), context))


def critic_config(cfg: PPOConfig) -> PPOConfig:
    """The critic's own rate on the policy's schedule; all of its parameters are trained."""
    return replace(cfg, learning_rate=cfg.critic_learning_rate, lora=LoRAConfig())


def _one_update(progress: Progress, learners: Learners, cfg: PPOConfig) -> Metrics:
    """One optimizer step on the next mini-batch of the rollout in use."""
    rate = learning_rate(progress.step, cfg)
    metrics = update(rows_in_turn(progress), learners, cfg, rate, learning_rate(progress.step, critic_config(cfg)))
    if progress.position == 0:
        check_sync(metrics, cfg)
    progress.step += 1
    progress.position += 1
    return metrics | {"train/learning_rate": rate} | empty_so_far(progress.latest, metrics)
