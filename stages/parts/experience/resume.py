"""The rollout in use as JSON, for checkpoints that fall between the updates of one rollout."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.tracking import Context
from stages.parts.experience.collect import Brief, Experience, Row
from stages.parts.policy.distributed import gather_objects
from stages.parts.rollouts.types import Problem, Rollout, Score


def experience_state(experience: Experience | None) -> dict[str, Any] | None:
    """With the rows of all ranks, so that another number of ranks can resume. A collective."""
    if experience is None:
        return None
    state = asdict(experience)
    state["rows"] = gather_objects(state["rows"])
    return state


def restored_experience(state: dict[str, Any] | None, context: Context) -> Experience | None:
    """This rank's share of what `experience_state` gave."""
    if state is None:
        return None
    rows = [_row(row) for row in state["rows"] if row["group"] % context.world_size == context.rank]
    briefs = {name: [Brief(**brief) for brief in state[name]] for name in ("briefs", "sampled")}
    return Experience(**(state | {"rows": rows} | briefs))


def _row(saved: dict[str, Any]) -> Row:
    rollout = Rollout(**(saved["rollout"] | {"score": Score(**saved["rollout"]["score"])}))
    return Row(**(saved | {"problem": Problem(**saved["problem"]), "rollout": rollout}))
