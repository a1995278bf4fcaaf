"""Typed schemas of what Hydra composes. Stage kinds extend `StageConfig` in their own heads.

Defaults live here; YAML holds choices that differ. A field marked `not_in_fingerprint` decides where and how fast
a stage runs, never what comes out of it, so changing it reuses what is in the store.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from pipeline.artifacts import Fault


def not_in_fingerprint(default: Any = dataclasses.MISSING, *, factory: Any = None) -> Any:
    """A dataclass field that is recorded in the manifest but must not change the result."""
    metadata = {"fingerprint": False}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def shared_by_ranks(default: int) -> Any:
    """The size of a step's global batch: the ranks of a stage must divide it, which the plan checks."""
    return field(default=default, metadata={"shared_by_ranks": True})


def local_path() -> Any:
    """A field that may name a local file or folder, which then counts by its content in fingerprints. A value that is
    no path here (a hub name) counts as it is written."""
    return field(default=None, metadata={"content": True})


def hub_name(kind: str, source: str) -> Any:
    """A local path, or where the config's `source` is this one the name of a model or dataset (`kind`) of the hub. The
    plan fills in the `revision` beside it (pipeline/hub.py)."""
    return field(default=None, metadata={"content": True, "hub": (kind, source)})


@dataclass
class EngineConfig:
    """How parameters are trained: one process (`torch`) or DeepSpeed ZeRO (`deepspeed`)."""

    kind: str = "torch"  # torch | deepspeed
    zero_stage: int = 0  # 0-3; DeepSpeed only (arXiv:1910.02054)
    offload: bool = False  # optimizer and parameters to CPU memory; ZeRO-3
    gradient_checkpointing: bool = False  # recompute activations in the backward pass: less memory, a third more work


SMALLEST_BUCKET = 2**18  # elements: 1 MiB of float32


def zero_stage(engine: EngineConfig, low_precision: bool) -> int:
    """ZeRO-1 in bfloat16 runs as ZeRO-2: DeepSpeed has another optimizer for it, which lacks the float32 access that
    checkpoints are made of. The result is the same, gradients take less memory. 0 without DeepSpeed."""
    if engine.kind != "deepspeed":
        return 0
    return 2 if engine.zero_stage == 1 and low_precision else engine.zero_stage


def zero_buffers(hidden_size: int, parameters: int) -> dict[str, int]:
    """Elements, by the rules that Hugging Face calls "auto"; the engine runs with them, the plan counts them.
    DeepSpeed's own defaults are for models of billions: a reduce bucket of 1.9 GiB in float32 whatever the model, and
    under ZeRO-3 no parameter below 100,000 elements and nothing of what is used again within 10^9 elements is ever
    given back, which keeps a small model whole."""
    bucket = max(hidden_size * hidden_size, SMALLEST_BUCKET)
    at_once = min(10**9, parameters // 4)
    return {
        "reduce_bucket_size": bucket,
        "stage3_prefetch_bucket_size": bucket * 9 // 10,
        "stage3_param_persistence_threshold": 10 * hidden_size,  # norms and biases stay whole
        "stage3_max_live_parameters": at_once,
        "stage3_max_reuse_distance": at_once,
    }


@dataclass
class LauncherConfig:
    """Where stages run: worker processes of this machine (`local`), this process (`inline`), or a cluster."""

    kind: str = "local"  # local | inline | torchrun | deepspeed | slurm
    num_ranks: int = 1  # ranks of every stage that does not say otherwise
    parallel_stages: int = 0  # independent stages side by side; 0: as many as cores or devices allow, at most 2
    threads: int = 0  # CPU threads a rank; 0: cores // (ranks x what runs beside it)
    concurrent_runs: int = 1  # runs on this machine at the same time, which share its cores (a sweep by joblib)
    gpu_memory_gib: float = 0.0  # of each GPU, for the plan; 0: as the driver here tells, else not known
    hosts: list[str] = field(default_factory=list)  # torchrun: one per machine; deepspeed: the hostfile's machines
    hostfile: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # slurm: partition, time, account, ...


@dataclass
class TrackerConfig:
    """Where metrics go beside metrics.jsonl, which is always written."""

    kind: str = "none"  # none | wandb
    project: str = "posttrain"
    entity: str | None = None
    mode: str | None = None  # wandb: online | offline; None: online where a key is found, else offline


@dataclass
class GateConfig:
    """A condition on a stage's result; the run stops (or warns) where it does not hold. Off while min is None."""

    metric: str = "reasoning/pass@1"  # or heldout/pass@k: of the stage's own suite
    min: float | None = None
    max_drop: float | None = None
    on_fail: str = "stop"  # stop | warn


@dataclass
class StageConfig:
    """What every stage has. `inputs` wires ports to sources: `stage.port`, `hub:org/name@rev`, `path:dir`."""

    kind: str = MISSING
    inputs: dict[str, str | None] = field(default_factory=dict)  # port -> source; null: an optional port left open
    seed: int = II("seed")
    engine: EngineConfig = not_in_fingerprint(factory=EngineConfig)
    num_ranks: int | None = not_in_fingerprint(None)  # None: launcher.num_ranks
    gate: GateConfig = not_in_fingerprint(factory=GateConfig)
    evaluate: bool = not_in_fingerprint(True)  # evaluate the model that this stage makes
    save_every_steps: int = not_in_fingerprint(50)  # checkpoints for resuming; the last two are kept

    def faults(self) -> list[Fault]:
        """Range and cross-field checks of this config alone; keys are relative to the stage."""
        faults = []
        if self.save_every_steps < 1:
            remedy = "write 1 or more; a large number keeps no checkpoint but the one of a stop"
            faults.append(Fault("save_every_steps", f"is {self.save_every_steps}", remedy))
        if self.gate.on_fail not in ("stop", "warn"):
            faults.append(Fault("gate.on_fail", f"'{self.gate.on_fail}' is unknown", "write stop or warn"))
        for name, bound in (("gate.min", self.gate.min), ("gate.max_drop", self.gate.max_drop)):
            if bound is not None and not math.isfinite(bound):
                faults.append(Fault(name, f"is {bound}, which decides nothing", "write a number, or null for no gate"))
        if self.gate.max_drop is not None and self.gate.max_drop < 0:
            remedy = "write 0 or more: how far the metric may fall; gate.min asks for a gain"
            faults.append(Fault("gate.max_drop", f"is {self.gate.max_drop}", remedy))
        return faults


@dataclass
class EvaluationConfig:
    """The derived step after every model: pass@k on held-out problems. Changing it retrains nothing."""

    enabled: bool = True
    problems: str = "problems.problems"  # the dataset:problems port that holds the held-out splits
    split: str = "test"  # test | dev
    suites: list[str] = field(default_factory=lambda: ["reasoning", "general"])
    max_problems: int = 500  # a suite
    samples: int = 8  # responses a problem: pass@1 is their mean, pass@k unbiased
    ks: list[int] = field(default_factory=lambda: [1, 8])
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 128
    seed: int = 0  # of sampling; the same for every run, so that models are compared on the same noise
    modes: bool = False  # measure both thinking modes too: obedience to flags, accuracy and length in each
    budgets: list[int] = field(default_factory=list)  # thinking budgets to measure accuracy at, in tokens
    mode_samples: int = 1  # responses a problem in each mode and at each budget
    stop_text: str = ""  # what closes the think block where a budget is used up


@dataclass
class ObjectiveConfig:
    """What a run returns to a sweeper that optimizes (optuna): a metric of a stage's evaluation, or of the stage."""

    stage: str | None = None
    metric: str = "reasoning/pass@1"  # or heldout/SUITE/pass@k, of its monitors


@dataclass
class RunConfig:
    """The whole configuration of one run (`conf/config.yaml`)."""

    name: str = ""  # of the run's folder; empty: <pipeline> or <pipeline>-<experiment>
    pipeline: str = ""  # name of the recipe; set from the choice, never by hand
    seed: int = 0
    output_dir: str = "outputs"
    dry_run: bool = False
    costs: str = "brief"  # brief | full: of each stage's memory dry_run=true shows the sum, or what takes it
    until: str | None = None
    from_stage: str | None = None
    force: list[str] = field(default_factory=list)
    reuse: str = "default"  # default | strict: recompute where a kind's code changed under an unchanged version
    allow_inert: bool = False
    G: int = 8
    beta: float = 0.001
    epsilon: float = 0.2
    stages: dict[str, StageConfig] = field(default_factory=dict)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    scale: dict[str, Any] = field(default_factory=dict)  # numbers by role; stage entries read ${scale.ROLE.FIELD}
    algorithm: Any = None  # one choice for all RL stages, each of which has a copy of its own, as of the engine
    # One choice for all stages; typed by the heads that read them (pipeline/compose.py), which say ${model}, ${data}.
    model: Any = None
    student: Any = None
    data: Any = None
    general_data: Any = None
