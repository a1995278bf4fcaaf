"""Faults that a plan can see, beside those of the wiring. Each is one line: key, problem, remedy."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

from pipeline.artifacts import Fault, model_folder_fault
from pipeline.config import EngineConfig, RunConfig, StageConfig
from pipeline.hosts import host_faults, hostfile_faults, machines, spread_faults
from pipeline.messages import suggest
from pipeline.plan_types import PlannedStage
from pipeline.provenance import hardware
from pipeline.store import entry_path, partial_path, unfinished
from pipeline.wiring import EVAL

SHARED = ("data", "general_data", "model", "student")  # nodes at the root that stages read whole
ROOT_KNOBS = {"G": "G", "beta": "algorithm.beta", "epsilon": "algorithm.epsilon"}
MOST_GIB = 2**20  # of a GPU that somebody plans for
LAUNCHERS = ("local", "inline", "torchrun", "deepspeed", "slurm")


def as_written(name: str, stage: StageConfig, fault: Fault, cfg: RunConfig) -> Fault:
    """A fault of a stage under the key that a user would write: `G` where a stage has the root's, `data.path`, not
    stages.problems.reasoning.path. In its remedy stages.NAME stands for the stage, NODE for the source of data or model
    that it is about."""
    remedy = fault.remedy.replace("stages.NAME", f"stages.{name}")
    if name.endswith(EVAL):
        return dataclasses.replace(fault, key=f"evaluation.{fault.key}", remedy=remedy)
    for knob, key in ROOT_KNOBS.items():
        if fault.key == key and str(_value(stage, key)) == str(getattr(cfg, knob)):  # nan is not even itself
            return dataclasses.replace(fault, key=knob, remedy=remedy)  # told once, not once a stage that reads it
    field, _, rest = fault.key.partition(".")
    value = getattr(stage, field, None)
    node, choice = f"stages.{name}.{field}", f"stages.{name}.{field}.source"
    shared = (root for root in SHARED if rest and dataclasses.is_dataclass(value) and value == getattr(cfg, root))
    if root := next(shared, None):
        node, choice = root, "data@general_data" if root == "general_data" else root
    key = f"{node}.{rest}" if rest else f"stages.{name}.{fault.key}"
    return dataclasses.replace(
        fault, key=key, remedy=remedy.replace("NODE.", f"{node}.").replace("NODE=", f"{choice}=")
    )


def run_faults(cfg: RunConfig, names: list[str]) -> list[Fault]:
    """What is wrong with the run as a whole."""
    faults = []
    asked = [("until", cfg.until), ("from_stage", cfg.from_stage), *(("force", name) for name in cfg.force)]
    asked.append(("objective.stage", cfg.objective.stage))
    for key, name in asked:
        if name is not None and name not in names:
            faults.append(Fault(key, f"there is no stage '{name}'", suggest(name, names)))
    own = [(f"stages.{name}.seed", stage.seed) for name, stage in cfg.stages.items() if stage.seed != cfg.seed]
    for key, seed in (("seed", cfg.seed), ("evaluation.seed", cfg.evaluation.seed), *own):
        if not 0 <= seed < 2**63:  # torch takes 64 bits, numpy nothing negative
            faults.append(Fault(key, f"is {seed}", "write 0 or more" if seed < 0 else "write one below 2^63"))
    if not cfg.output_dir:
        faults.append(Fault("output_dir", "is empty", "name a folder, or leave it out: outputs"))
    if "/" in cfg.name or cfg.name.startswith("."):
        faults.append(Fault("name", f"'{cfg.name}' is no name of a folder", "leave out slashes and a leading dot"))
    if cfg.reuse not in ("default", "strict"):
        faults.append(Fault("reuse", f"'{cfg.reuse}' is unknown", "write default or strict"))
    if cfg.costs not in ("brief", "full"):
        faults.append(Fault("costs", f"'{cfg.costs}' is unknown", "write brief or full"))
    memory = cfg.launcher.gpu_memory_gib
    if memory != 0 and not 1 <= memory <= MOST_GIB:
        faults.append(Fault("launcher.gpu_memory_gib", f"is {memory}", "write 80, or 0 for here"))
    if cfg.launcher.kind not in LAUNCHERS:
        faults.append(
            Fault("launcher.kind", f"'{cfg.launcher.kind}' is unknown", suggest(cfg.launcher.kind, LAUNCHERS))
        )
    if cfg.tracker.kind not in ("none", "wandb"):
        faults.append(Fault("tracker.kind", f"'{cfg.tracker.kind}' is unknown", "write none or wandb"))
    if cfg.tracker.mode not in (None, "online", "offline"):
        faults.append(Fault("tracker.mode", f"'{cfg.tracker.mode}' is unknown", "write online or offline"))
    for key, least in (("threads", 0), ("parallel_stages", 0), ("concurrent_runs", 1)):
        if getattr(cfg.launcher, key) < least:
            faults.append(Fault(f"launcher.{key}", f"is {getattr(cfg.launcher, key)}", f"write {least} or more"))
    wanted = Path(cfg.output_dir).absolute()
    folder = next(path for path in (wanted, *wanted.parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        faults.append(Fault("output_dir", f"'{folder}' is no folder that can be written", "name one that can"))
    if cfg.launcher.num_ranks < 1:
        faults.append(Fault("launcher.num_ranks", f"is {cfg.launcher.num_ranks}", "write at least 1"))
    if not cfg.stages:
        faults.append(Fault("stages", "there is nothing to run", "leave some stages in"))
    return faults + host_faults(cfg.launcher)


def config_faults(name: str, stage: StageConfig, cfg: RunConfig) -> list[Fault]:
    """Range and cross-field checks of one stage's config."""
    return [as_written(name, stage, fault, cfg) for fault in [*stage.faults(), *engine_faults(stage.engine)]]


def engine_faults(engine: EngineConfig) -> list[Fault]:
    if engine.kind not in ("torch", "deepspeed"):
        return [Fault("engine.kind", f"'{engine.kind}' is unknown", "write torch or deepspeed")]
    faults = []
    if engine.zero_stage not in (0, 1, 2, 3):
        faults.append(Fault("engine.zero_stage", f"is {engine.zero_stage}", "write 0, 1, 2 or 3"))
    elif engine.kind == "torch" and engine.zero_stage:
        remedy = (
            f"choose engine=zero{engine.zero_stage}, for one stage engine@stages.NAME.engine=zero{engine.zero_stage}"
        )
        faults.append(Fault("engine.zero_stage", f"ZeRO-{engine.zero_stage} needs DeepSpeed", remedy))
    if engine.offload and (engine.kind, engine.zero_stage) != ("deepspeed", 3):
        faults.append(Fault("engine.offload", "parameters are only offloaded by ZeRO-3", "choose engine=zero3_offload"))
    return faults


def machine_faults(planned: PlannedStage, cfg: RunConfig, warnings: list[str]) -> list[Fault]:
    """Ranks against launcher and hardware; ranks beyond the cores of a CPU are only a warning."""
    key = "launcher.num_ranks" if planned.cfg.num_ranks is None else f"stages.{planned.name}.num_ranks"
    if planned.ranks < 1:
        return [Fault(key, f"is {planned.ranks}", "write at least 1")]
    launcher, machine = cfg.launcher, hardware()
    if launcher.kind == "inline":
        if planned.ranks > 1:
            return [Fault(key, f"is {planned.ranks}, launcher=inline has one rank", "choose launcher=local")]
        if planned.cfg.engine.kind == "deepspeed":
            return [
                Fault(
                    "launcher", f"inline cannot run DeepSpeed, which {planned.name} asks for", "choose launcher=local"
                )
            ]
    faults = batch_faults(planned, key)
    if hostfile_faults(launcher):  # told once, for the run as a whole
        return faults
    if launcher.kind == "slurm" or len(machines(launcher)) > 1:
        return faults + spread_faults(launcher, key, planned.ranks)  # of hardware that is not in sight
    if machine["gpus"] and planned.ranks > machine["gpus"]:
        problem = f"is {planned.ranks}, there are {machine['gpus']} GPUs"
        return [*faults, Fault(key, problem, f"write {key}={machine['gpus']}")]
    warning = f"{key}: {planned.ranks} ranks share {machine['cores']} cores, which is slower than one rank a core"
    if planned.ranks > machine["cores"] and warning not in warnings:
        warnings.append(warning)
    return faults


def batch_faults(planned: PlannedStage, key: str) -> list[Fault]:
    """Every rank takes the same share of a step's batch (fields marked `shared_by_ranks`)."""
    faults = []
    for item in dataclasses.fields(planned.cfg):
        if "shared_by_ranks" not in item.metadata or item.name in planned.outline.inert:
            continue
        value, ranks = getattr(planned.cfg, item.name), planned.ranks
        if value > 0 and value % ranks:
            fitting = [str(n) for n in (value // ranks * ranks, (value // ranks + 1) * ranks) if n]
            problem = f"is {value}, which {ranks} ranks do not share evenly"
            remedy = f"write {' or '.join(fitting)}, or {key}={largest_divisor(value, ranks)}"
            faults.append(Fault(f"stages.{planned.name}.{item.name}", problem, remedy))
    return faults


def largest_divisor(number: int, most: int) -> int:
    return next(divisor for divisor in range(min(number, most), 0, -1) if number % divisor == 0)


def store_faults(planned: PlannedStage, store: Path) -> list[Fault]:
    """What lies in the store under a stage's name and cannot be used: checkpoints that another recipe wrote (copied
    there by hand), and a cached adapter whose base is gone."""
    if planned.cached:
        entry, faults = entry_path(store, planned.kind, planned.fingerprint), []
        for port in planned.outline.outputs:
            is_adapter = (entry / port / "adapter_config.json").exists()
            if is_adapter and (fault := model_folder_fault(entry / port)):
                remedy = f"force=[{planned.name}] makes it again, or bring the base back"
                faults.append(Fault(f"stages.{planned.name}", fault.problem, remedy))
        return faults
    begun = unfinished(store, planned.kind, planned.fingerprint)
    if begun is None or begun[1] == planned.fingerprint:
        return []
    folder = partial_path(store, planned.kind, planned.fingerprint)
    problem = f"the checkpoints in {folder} are of another recipe ({planned.kind}-{begun[1]})"
    return [Fault(f"stages.{planned.name}", problem, "remove that folder: then the stage starts anew")]


def inert_knobs(cfg: RunConfig, stages: list[PlannedStage], overrides: list[str]) -> list[str]:
    """What was set on the command line and does nothing, or acts on some stages only."""
    asked = {override.lstrip("+").partition("=")[0] for override in overrides}
    notes = []
    for stage in stages:
        for key, why in stage.outline.inert.items():
            shared = as_written(stage.name, stage.cfg, Fault(key, "", ""), cfg).key  # data.difficulty, for one
            for written in (f"stages.{stage.name}.{key}", shared):
                if any(item == written or item.startswith(f"{written}.") for item in asked):
                    notes.append(f"{written} does nothing: {why}")
    for root, key in ROOT_KNOBS.items():
        if root in asked:
            notes += _root_knob(root, key, cfg, stages)
    notes += [note for override in overrides for note in kept_shares(override, cfg)]
    return list(dict.fromkeys(notes))


def kept_shares(override: str, cfg: RunConfig) -> list[str]:
    """`stages.general_rl.suites={reasoning: 1}` keeps the other suites, because Hydra merges mappings."""
    key, _, value = override.partition("=")
    _, _, rest = key.partition("stages.")
    name, _, field = rest.partition(".")
    shares = getattr(cfg.stages.get(name), field, None)
    if not value.startswith("{") or not isinstance(shares, dict):
        return []
    kept = [one for one, share in shares.items() if isinstance(share, float) and not re.search(rf"\b{one}\b", value)]
    return [f"{key} keeps {one} as well, mappings are merged; ~{key}.{one} leaves it out" for one in kept]


def _root_knob(root: str, key: str, cfg: RunConfig, stages: list[PlannedStage]) -> list[str]:
    """A root knob acts on a stage that reads it, unless the stage has its own value or the knob does nothing there."""
    having = [stage for stage in stages if _value(stage.cfg, key) is not None]
    idle = {stage.name: stage.outline.inert[key] for stage in having if key in stage.outline.inert}
    for stage in having:
        if _value(stage.cfg, key) != getattr(cfg, root):
            idle[stage.name] = stage.outline.pinned.get(key, "it has a value of its own")
    return [describe(root, [stage.name for stage in having if stage.name not in idle], idle)] if idle else []


def describe(key: str, acting: list[str], idle: dict[str, str]) -> str:
    """`epsilon acts on general_rl only (reasoning_rl: ...)`; one reason for several stages is told once."""
    reasons: dict[str, list[str]] = {}
    for name, why in idle.items():
        reasons.setdefault(why, []).append(name)
    told = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    return f"{key} acts on {', '.join(acting) + ' only' if acting else 'no stage'} ({told or 'no stage reads it'})"


def _value(config: object, key: str) -> object:
    for part in key.split("."):
        config = getattr(config, part, None)
    return config
