"""Where a loop over rollouts stands, and how it is kept: shared by every stage that samples and updates in turns.

One rollout feeds several updates, so a checkpoint may fall between them and then carries the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.artifacts import Interrupted
from pipeline.tracking import Context, Metrics
from stages.parts.experience.collect import Experience, Row
from stages.parts.experience.config import ExperienceConfig
from stages.parts.experience.order import Cursor
from stages.parts.experience.resume import experience_state, restored_experience
from stages.parts.policy.checkpoint import Restorable, load_checkpoint, save_checkpoint
from stages.parts.policy.distributed import any_rank


@dataclass
class Progress:
    """Everything that a resumed stage needs beside weights and optimizers."""

    step: int = 0  # optimizer steps done
    cursor: Cursor = field(default_factory=dict)  # problems drawn a suite
    experience: Experience | None = None  # the rollout in use
    position: int = 0  # updates of it that are done
    latest: Metrics = field(default_factory=dict)  # the last value of every metric


def rows_in_turn(progress: Progress) -> list[Row]:
    """This rank's rows of the next mini-batch of the rollout in use."""
    experience = progress.experience
    assert experience is not None
    groups = set(experience.minibatches[progress.position % len(experience.minibatches)])
    return [row for row in experience.rows if row.group in groups]


def after_update(
    progress: Progress,
    engine: Restorable,
    cfg: ExperienceConfig,
    context: Context,
    beside: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
) -> None:
    """End of a rollout, checkpoint, stop request (Interrupted). `beside` and `tensors`: what the stage itself keeps."""
    experience = progress.experience
    assert experience is not None
    if progress.position == len(experience.minibatches) * cfg.epochs_per_rollout:
        progress.experience = None
    stop = any_rank(context.stop.is_set())
    if stop or (progress.step % cfg.save_every_steps == 0 and progress.step < cfg.steps):
        state = {name: getattr(progress, name) for name in ("cursor", "position", "latest")} | (beside or {})
        state["experience"] = experience_state(progress.experience)
        save_checkpoint(context, progress.step, engine, state, tensors)
    if stop:
        raise Interrupted(f"stopped after step {progress.step} of {cfg.steps}, checkpoint written")


def restore(progress: Progress, context: Context, engine: Restorable) -> dict[str, Any] | None:
    """Put `progress` and `engine` where the newest checkpoint stands; its state, None where there is none."""
    found = load_checkpoint(context, engine)
    if found is None:
        return None
    progress.step, state = found
    progress.cursor, progress.position, progress.latest = state["cursor"], state["position"], state["latest"]
    progress.experience = restored_experience(state["experience"], context)
    return state
