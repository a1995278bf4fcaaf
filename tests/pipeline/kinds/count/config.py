"""A kind for tests of the driver: counts to `steps`, with checkpoints, and dies in the way it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.artifacts import Outline, Port
from pipeline.config import StageConfig, not_in_fingerprint

RECIPE_VERSION = 1
INPUTS = {"before": Port("metrics", "what was counted before", optional=True)}
OUTPUTS = {"total": Port("metrics", "the count and that of the input")}


@dataclass
class CountConfig(StageConfig):
    kind: str = "count"
    seed: int = 0
    steps: int = 3
    start: int = 0
    value: float = 1.0
    shares: dict[str, float] = field(default_factory=lambda: {"a": 1.0})
    step_seconds: float = not_in_fingerprint(0.0)
    fail: str = not_in_fingerprint("")  # raise | stage_failed | kill | kill_late | exit | hang | nothing | ...
    fail_at_step: int = not_in_fingerprint(1)
    fail_rank: int = not_in_fingerprint(0)
    trace: str = not_in_fingerprint("")  # a file that gets a line for each start and each step
    once: bool = not_in_fingerprint(False)  # fail only where the trace shows no earlier start


def outline(cfg: CountConfig, inputs: dict) -> Outline:
    return Outline(outputs={"total": {"rows": cfg.steps}}, steps=cfg.steps)
