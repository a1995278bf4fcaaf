"""The learning rate as a pure function of the step: nothing to save, nothing to restore, nothing to restart by mistake
(transformers#25865)."""

from __future__ import annotations

import math

from stages.parts.policy.config import TrainedStageConfig


def learning_rate(step: int, cfg: TrainedStageConfig) -> float:
    """Rate of optimizer step `step`, 0 <= step < cfg.steps.

    Warm-up: linear, (step+1)/warmup of the peak, so that the first step is not wasted on a rate of zero. After it
    `constant`, or a fall to `final_fraction` of the peak that would be reached at step cfg.steps.
    """
    optimizer = cfg.optimizer
    warmup = round(optimizer.warmup_fraction * cfg.steps)
    if step < warmup:
        return cfg.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, cfg.steps - warmup)
    if optimizer.schedule == "constant":
        return cfg.learning_rate
    if optimizer.schedule == "linear":
        shape = 1.0 - progress
    elif optimizer.schedule == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        raise ValueError(f"optimizer.schedule={optimizer.schedule}: write constant, linear or cosine")
    return cfg.learning_rate * (optimizer.final_fraction + (1.0 - optimizer.final_fraction) * shape)
