"""What a plan is: the ordered stages, where each input comes from, and what is known before anything runs.

`plan.py` makes it, `runner.py` executes it, the display and the reports read it. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import Outline
from pipeline.config import StageConfig
from pipeline.costs import NO_COSTS, Costs


@dataclass
class Source:
    """Where one input port is fed from: an output of a stage of this plan, or something external."""

    port: str  # input port of the reading stage
    kind: str  # kind of artifact
    wired: str  # as written in the pipeline: "cold_start.model", "path:dir", "hub:org/name@COMMIT" (a branch resolved)
    fingerprint: str  # of the producing stage's recipe, or of the external thing
    stage: str | None = None  # producing stage; None: external
    output: str | None = None  # its output port
    path: Path | None = None  # external only; of the hub: "hub:org/name@COMMIT", brought here by the ranks
    digest: str | None = None  # external only: hash of the content
    facts: dict[str, Any] = field(default_factory=dict)  # declared at plan time


@dataclass
class PlannedStage:
    """One stage of the plan, everything resolved. `stages.<kind>` is found through the module of `cfg`."""

    name: str
    kind: str
    cfg: StageConfig
    inputs: dict[str, Source]
    fingerprint: str
    cached: bool  # sealed, and sealed from today's inputs, as far as the plan can see
    outline: Outline
    threads: int  # CPU threads a rank
    ranks: int
    forced: bool = False  # run although it is sealed (force=, or code changed under reuse=strict)
    wanted: bool = True  # false: beyond until=
    evaluates: str | None = None  # the stage whose model a `.eval` node evaluates
    code_changed: bool = False  # sealed by other source code under the same recipe version
    costs: Costs = NO_COSTS  # what it will take where it runs
    seconds: float | None = None  # estimated from results of its kind on such a machine; None: there are none
    times_the_work: float = 1.0  # of the result that `seconds` was estimated from
    why: str = ""  # why it is cached or has to run, for people


@dataclass
class Plan:
    """Stages in an order in which every source stands before its readers."""

    name: str
    pipeline: str
    store: Path
    stages: list[PlannedStage]
    parallel: int = 1  # stages side by side
    warnings: list[str] = field(default_factory=list)

    def stage(self, name: str) -> PlannedStage:
        return next(stage for stage in self.stages if stage.name == name)
