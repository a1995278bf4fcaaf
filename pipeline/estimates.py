"""The costs of a plan's stages on the machine that will run them: memory against what there is, time from experience.

Nobody can compute how long a stage takes, but the store knows how long others of its kind took: on the same processor,
with as many ranks and threads and the same engine, seconds grow with the work (operations, rows where no model is at
work). The result whose work is nearest is taken. Where there is none the time is not known, and the plan says so.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import LauncherConfig
from pipeline.costs import CPU_IMPORTS, Costs, costs
from pipeline.hosts import local_names, machines
from pipeline.plan_types import Plan, PlannedStage
from pipeline.provenance import hardware
from pipeline.store import MANIFEST, entry_path
from pipeline.wiring import independent

WORK = ".work.jsonl"  # in the store
NOMINAL = 1.1  # by how much a GPU's name may exceed what it has: an L4 of 24 GB has 22.5 GiB
USABLE = 0.92  # of a GPU's memory: the rest is its context and what an allocator cannot use


@dataclass(frozen=True)
class Machine:
    """What one rank runs on."""

    gpu: bool
    memory: int | None  # bytes: of one GPU, or of the machine that all ranks share; None: not known
    is_here: bool = True
    runs: int = 1  # that share a machine's memory; on GPUs each run has its own


def machine_of(launcher: LauncherConfig) -> Machine:
    """The machine here, or what the launcher says about others. Those that are not in sight are taken to have GPUs."""
    here, is_here = hardware(), stays_here(launcher)
    memory = gpu_memory() if here["gpus"] and is_here else None
    if launcher.gpu_memory_gib:
        asked = round(launcher.gpu_memory_gib * 2**30)
        return Machine(True, asked, is_here and here["gpus"] > 0 and asked <= NOMINAL * (memory or asked))
    if here["gpus"] or not is_here:
        return Machine(True, memory, is_here)
    return Machine(False, round(here["memory_gib"] * 2**30), runs=max(1, launcher.concurrent_runs))


def stays_here(launcher: LauncherConfig) -> bool:
    try:
        return launcher.kind != "slurm" and local_names().issuperset(machines(launcher))
    except (OSError, ValueError):  # a hostfile that cannot be read is refused elsewhere
        return False


@functools.cache
def gpu_memory() -> int | None:
    """Bytes of the smallest GPU here, as its driver tells; None where it does not."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        return min(map(int, told.splitlines())) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


@dataclass(frozen=True)
class Done:
    """A sealed result, as far as it tells about time."""

    where: tuple[Any, ...]
    work: float
    seconds: float


@dataclass
class History:
    """What the results of a store took."""

    done: dict[str, list[Done]]  # by kind

    @classmethod
    def of_store(cls, store: Path) -> History:
        try:
            return cls(_read(store, *(path.stat().st_mtime_ns for path in (store, store / WORK))))
        except OSError:
            return cls({})  # without the memo times are not known

    def seconds(self, planned: PlannedStage) -> tuple[float | None, float]:
        """What it may take, and how many times the work of the result that says so this is."""
        work = amount(planned)
        here = hardware()
        where = place(here, planned.ranks, planned.threads, planned.cfg.engine.kind)
        known = [one for one in self.done.get(planned.kind, []) if one.where == where]
        if not known or work is None or work <= 0:
            return None, 1.0
        nearest = min(known, key=lambda one: abs(math.log(one.work / work)))
        return nearest.seconds * work / nearest.work, work / nearest.work


@functools.lru_cache(1)
def _read(store: Path, *changed: int) -> dict[str, list[Done]]:
    """Once per state of a store: a sweep plans hundreds of jobs."""
    found: dict[str, list[Done]] = {}
    for entry, work in _recorded(store).items():
        try:
            manifest = json.loads((store / entry / MANIFEST).read_text())
            where = place(manifest["hardware"], manifest["ranks"], manifest["threads"], manifest["engine"]["kind"])
            if 0 < manifest["seconds"] < math.inf:
                found.setdefault(manifest["kind"], []).append(Done(where, work, manifest["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # collected since, never sealed, or not written by this project
    return found


def _recorded(store: Path) -> dict[str, float]:
    """Entry of the store -> the work that its plan gave it. A memo: lines that cannot be read are passed over (the last
    one is torn where a disk was full)."""
    found = {}
    for line in (store / WORK).read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
            if 0 < record["work"] < math.inf:
                found[str(record["entry"])] = float(record["work"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def record_work(store: Path, planned: PlannedStage) -> None:
    """Remember how much work a result was. One line at once, so that runs side by side do not disturb each other."""
    if work := amount(planned):
        line = {"entry": entry_path(store, planned.kind, planned.fingerprint).name, "work": work}
        with (store / WORK).open("ab+") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
            begin = "\n" if size and file.read(1) != b"\n" else ""  # after a torn line
            file.write(f"{begin}{json.dumps(line)}\n".encode())


def place(machine: dict[str, Any], ranks: int, threads: int, engine: str) -> tuple[Any, ...]:
    """What time depends on beside the work."""
    return machine["cpu"], tuple(machine["gpu_names"]), ranks, threads, engine


def add_costs(plan: Plan, launcher: LauncherConfig, before: dict[str, set[str]]) -> None:
    """Fill in the stages' `costs` and `seconds`, and warn where there is no room for them. The plan has no faults."""
    machine, history = machine_of(launcher), History.of_store(plan.store)
    for stage in plan.stages:
        estimate(stage, machine, history)
    plan.warnings += room_warnings(plan, machine, launcher, before)


def estimate(planned: PlannedStage, machine: Machine, history: History) -> None:
    if planned.outline.work is not None:
        planned.costs = costs(
            planned.outline.work, planned.cfg.engine, max(1, planned.ranks), machine.gpu, machine.memory
        )
    planned.seconds, planned.times_the_work = history.seconds(planned) if machine.is_here else (None, 1.0)


def amount(planned: PlannedStage) -> float | None:
    """Operations of its models, or the rows that it writes."""
    if planned.outline.work is not None:
        return planned.costs.work
    return float(sum(map(_rows, planned.outline.outputs.values()))) or None


def _rows(facts: dict[str, Any]) -> int:
    splits = [*facts.get("suites", {}).values(), facts.get("pairs", {})]
    return facts.get("rows", 0) + sum(sum(sizes.values()) for sizes in splits)


def planned_costs(planned: PlannedStage) -> dict[str, Any]:
    """For plan.json: bytes, operations (rows, where no model is at work), seconds."""
    found: Costs = planned.costs
    return {
        "memory": found.memory,
        "moment": found.moment,
        "disk": found.disk,
        "disk_running": found.disk_running,
        "work": amount(planned),
        "seconds": planned.seconds,
        "times_the_work": planned.times_the_work,
    }


def room_warnings(plan: Plan, machine: Machine, launcher: LauncherConfig, before: dict[str, set[str]]) -> list[str]:
    """Stages to run that need more memory than there is, and results for which the disk has no room; and where costs
    are told for another machine than this one."""
    coming = [stage for stage in plan.stages if stage.wanted and not stage.cached]
    notes = memory_warnings(coming, machine) or side_by_side_warnings(coming, plan.parallel, machine, before)
    if launcher.gpu_memory_gib and stays_here(launcher) and not machine.is_here:
        here = f"those here have {gib(gpu_memory() or 0)}" if hardware()["gpus"] else "here is none"
        notes.append(f"costs are those on GPUs of {launcher.gpu_memory_gib:g} GiB (launcher.gpu_memory_gib), {here}")
    folder = next(path for path in (plan.store.absolute(), *plan.store.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    needed = sum(stage.costs.disk or 0 for stage in coming)
    needed += max(((stage.costs.disk_running or 0) - (stage.costs.disk or 0) for stage in coming), default=0)
    if needed > free:
        notes.append(f"output_dir: results and checkpoints take about {gib(needed)}, {folder} has {gib(free)} left")
    return notes


def memory_warnings(stages: list[PlannedStage], machine: Machine) -> list[str]:
    """Stages of which the same is to be said share a line."""
    told: dict[str, list[str]] = {}
    for stage in stages:
        if warning := _too_large(stage, machine):
            told.setdefault(warning, []).append(stage.name)
    return [f"{', '.join(names)}: {warning}" for warning, names in told.items()]


def _too_large(stage: PlannedStage, machine: Machine) -> str:
    peak, room = stage.costs.peak, machine.memory
    if peak is None or room is None or stage.costs.memory is None:
        return ""
    if _needed(stage, machine) <= (USABLE * room if machine.gpu else room / machine.runs):
        return ""
    parts = sorted(stage.costs.memory.items(), key=lambda part: -part[1])
    told = ", ".join(f"{name} {gib(size)}" for name, size in parts[:3])
    whose = "a GPU" if machine.gpu else "the machine" + (f" of {stage.ranks} ranks" if stage.ranks > 1 else "")
    remedy = remedies(stage, parts[0][0])
    return f"about {gib(peak)} a rank while {stage.costs.moment} ({told}), {whose} has {_has(machine, room)}: {remedy}"


def _has(machine: Machine, room: int) -> str:
    return gib(room) + (f" for {machine.runs} runs" if machine.runs > 1 else "")


def _needed(stage: PlannedStage, machine: Machine) -> float:
    """Bytes of a GPU, or of the machine whose memory all ranks share."""
    peak = stage.costs.peak or 0.0
    return peak if machine.gpu else stage.ranks * (peak + CPU_IMPORTS)


def side_by_side_warnings(
    stages: list[PlannedStage], parallel: int, machine: Machine, before: dict[str, set[str]]
) -> list[str]:
    """Two stages that have room alone, and that may run at the same time, but have none together. On GPUs each has
    devices of its own."""
    room, needs = machine.memory, {stage.name: _needed(stage, machine) for stage in stages}
    if machine.gpu or room is None or parallel < 2 or sum(sorted(needs.values())[-2:]) <= room / machine.runs:
        return []
    pairs = [
        (needs[one] + needs[other], one, other)
        for one, other in itertools.combinations(needs, 2)
        if independent(one, other, before)
    ]
    needed, one, other = max(pairs, default=(0.0, "", ""))
    if needed <= room / machine.runs:
        return []
    told = f"about {gib(needed)}, the machine has {_has(machine, room)}"
    return [f"{one} and {other}, which may run side by side: {told}: launcher.parallel_stages=1 runs one at a time"]


def remedies(stage: PlannedStage, largest: str) -> str:
    """The knobs that act on what takes most."""
    key, cfg = "stages.NAME", stage.cfg
    if stage.costs.moment == "sampling" and largest in ("cache", "logits"):
        return "lower evaluation.max_response_tokens" if stage.evaluates else f"lower {key}.max_response_tokens"
    if largest in ("activations", "logits"):
        knobs = [f"lower {key}.tokens_per_microbatch (the result stays the same)"]
        if not cfg.engine.gradient_checkpointing:
            knobs.append(f"{key}.engine.gradient_checkpointing=true")
        return ", or ".join(knobs)
    if getattr(cfg, "lora", None) is None:
        return "choose a smaller model, or a machine with more memory"
    if cfg.engine.zero_stage < 3:
        return f"engine=zero3 with more ranks (launcher.num_ranks), or {key}.lora.rank=16"
    return f"more ranks (launcher.num_ranks), engine=zero3_offload, or {key}.lora.rank=16"


def gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
