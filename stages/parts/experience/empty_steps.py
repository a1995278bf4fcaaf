"""Steps that had nothing to train on: each is survived and counted, a stage of nothing else has failed.

Differs from a loop that goes on regardless: a model that was never trained would be handed on as a trained one.
"""

from __future__ import annotations

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.experience.config import ExperienceConfig

SO_FAR = "train/empty_steps"


def empty_so_far(latest: Metrics, metrics: Metrics) -> Metrics:
    """The count after a step with these `metrics`; `latest` are those before it, none at first."""
    return {SO_FAR: latest.get(SO_FAR, 0.0) + metrics["train/empty_step"]}


def tell_empty_steps(latest: Metrics, cfg: ExperienceConfig, context: Context) -> None:
    """A note where some steps were empty. Raises StageFailed where all were."""
    empty = latest[SO_FAR]
    if empty == cfg.steps:
        raise StageFailed(
            f"none of {cfg.steps} steps had anything to train on: in every group all rewards were the same, or no "
            "response could be judged, or all were cut off and masked; try more responses (G), easier problems, or "
            "algorithm.zero_variance=keep"
        )
    if empty:
        context.note(f"{empty:.0f} of {cfg.steps} steps had nothing to train on and changed nothing")
