"""The loop of every stage that learns from text it is given: resume -> step -> log -> checkpoint, or stop.

A step is a function of its number alone, so a resumed stage goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.artifacts import Interrupted
from pipeline.tracking import Context, Metrics
from stages.parts.policy.checkpoint import load_checkpoint, save_checkpoint
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.distributed import any_rank
from stages.parts.policy.train_engine import TrainEngine

# number of the step, from 0 -> its metrics (train/loss among them), and what is logged beside them
Step = Callable[[int], tuple[Metrics, Metrics]]

SHOWN = ("train/loss", "train/accuracy", "time/tokens_per_second")  # on the screen, where a stage has them


def run_steps(
    engine: TrainEngine, cfg: TrainedStageConfig, context: Context, take_step: Step, sums: dict[str, str]
) -> Metrics:
    """All steps that are left; the metrics of the last one, and the sums over all. `sums`: metric -> name of its sum;
    the first one stands from the start. Raises Interrupted after a checkpoint where a stop was asked for."""
    step, totals, metrics = 0, dict.fromkeys(list(sums.values())[:1], 0.0), {}
    resumed = load_checkpoint(context, engine)
    if resumed:
        step, state = resumed
        totals, metrics = state["totals"], state["metrics"]
    while step < cfg.steps:
        started = time.monotonic()
        metrics, beside = take_step(step)
        step += 1
        for name, total in sums.items():
            if name in metrics:
                totals[total] = totals.get(total, 0.0) + metrics[name]
        _log(context, cfg, step, metrics | beside, time.monotonic() - started)
        stop = any_rank(context.stop.is_set()) and step < cfg.steps
        if stop or step % cfg.save_every_steps == 0 or step == cfg.steps:
            save_checkpoint(context, step, engine, {"totals": totals, "metrics": metrics})
        if stop:
            raise Interrupted(f"stopped after step {step} of {cfg.steps}")
    return metrics | totals | {"train/steps": float(step)}


def _log(context: Context, cfg: TrainedStageConfig, step: int, metrics: Metrics, seconds: float) -> None:
    clock = {"time/step_seconds": seconds}
    if "train/tokens" in metrics:
        clock["time/tokens_per_second"] = metrics["train/tokens"] / seconds
    recorded = metrics | clock
    context.log(step, recorded)
    context.progress(step, cfg.steps, **{key.split("/")[1]: recorded[key] for key in SHOWN if key in recorded})
