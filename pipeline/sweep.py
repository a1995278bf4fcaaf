"""A sweep: its folder, its ledger and what it is about to compute.

    outputs/sweeps/<name>/sweep.json        one entry per set of axis values, kept across repeats and interruptions
    outputs/sweeps/<name>/<axis values>/    a run each

Jobs may run in other processes (joblib and others), so each records its own status under a file lock. A job's identity
is its axis values, never its number; everything that is no axis is the base, and another base has another folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import compose
from pipeline.artifacts import Fault
from pipeline.jobs import Axis, Job
from pipeline.messages import Refused
from pipeline.provenance import hardware
from pipeline.store import write_json
from pipeline.table import columns

DONE, FAILED, REFUSED = 0, 1, 2
NAMES = {DONE: "done", FAILED: "failed", REFUSED: "refused"}
# Of the root: where things lie and how far a run goes, which is no part of what a sweep is about
NOT_BASE = ("output_dir", "name", "dry_run", "costs", "tracker", "launcher", "until", "from_stage", "force", "reuse")

TO_LAUNCH: dict[str, list[str]] = {}  # job -> its overrides, for the sweeper (hydra_plugins/planned.py)


def name_of(status: int) -> str:
    return NAMES.get(status, "interrupted")


def exit_status(statuses: list[int]) -> int:
    """2 if every job was refused, else 1 if any was refused or failed, else 0. An interrupted sweep says so itself."""
    if statuses and all(status == REFUSED for status in statuses):
        return REFUSED
    return FAILED if any(status != DONE for status in statuses) else DONE


def job_name(axes: list[Axis], job: Job) -> str:
    """As Hydra names the folder of a job whose other overrides are no part of its identity."""
    return compose.job_folder(",".join(sorted(_assignments(axes, job))))


def _assignments(axes: list[Axis], job: Job) -> list[str]:
    return [f"{axis.key}={value}" for axis, value in zip(axes, job.values, strict=True)]


def summary(jobs: list[Job]) -> str:
    """How many stage runs the jobs ask for, and how many of them are computed at all."""
    asked, cached = _stage_runs(jobs)
    shared = sum(asked.values()) - len(asked)
    return (
        f"{len(jobs)} jobs ask for {sum(asked.values())} stage runs: {len(asked)} distinct ({shared} shared), "
        f"{len(cached)} cached, {len(asked) - len(cached)} to run"
    )


def _stage_runs(jobs: list[Job]) -> tuple[dict[tuple[str, str], int], set[tuple[str, str]]]:
    asked: dict[tuple[str, str], int] = {}
    cached = set()
    for job in jobs:
        for stage in job.plan.stages if job.plan else []:
            if stage.wanted:
                key = (stage.kind, stage.fingerprint)
                asked[key] = asked.get(key, 0) + 1
                if stage.cached:
                    cached.add(key)
    return asked, cached


def table(axes: list[Axis], jobs: list[Job]) -> str:
    """What `dry_run=true` shows of a sweep: one line a stage, over all jobs."""
    found: dict[str, dict[str, bool]] = {}  # stage -> fingerprint -> cached
    for job in jobs:
        for stage in job.plan.stages if job.plan else []:
            if stage.wanted:
                found.setdefault(stage.name, {})[stage.fingerprint] = stage.cached
    rows = [("stage", "distinct", "cached", "to run", "axes that act on it")]
    for name, states in found.items():
        acting = ", ".join(axis.key for axis in axes if name in axis.acts)
        cached = sum(states.values())
        rows.append((name, str(len(states)), str(cached), str(len(states) - cached), acting))
    return columns(rows, right=(1, 2, 3))


def refusals(axes: list[Axis], jobs: list[Job]) -> list[str]:
    """Every refused job with its faults; jobs that share a fault are told once."""
    told: dict[str, list[str]] = {}
    for job in jobs:
        if job.plan is None:
            told.setdefault(job.refusal, []).append(",".join(_assignments(axes, job)))
    return [f"refused: {names[0]}{_others(names)}\n{message}" for message, names in told.items()]


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def base_of(fixed: list[str]) -> dict[str, Any]:
    """What all jobs have in common: the overrides that are no axes, and what they make of the configuration."""
    written = [item for item in fixed if item.partition("=")[0] not in NOT_BASE]
    try:
        cfg = compose.compose(fixed)
    except Refused:
        return {"overrides": written, "config": None}  # an axis supplies what is missing
    config = {key: value for key, value in dataclasses.asdict(cfg).items() if key not in NOT_BASE}
    return {"overrides": written, "config": json.loads(json.dumps(config, default=str))}


def is_planned(arguments: list[str]) -> bool:
    """Whether the jobs are those that are planned; not where a sweeper chooses values as it goes (optuna).

    Raises Refused for Hydra's own sweeper of a grid, which would compose every job twice and plan none.
    """
    written = [item.lstrip("+").partition("=") for item in arguments]
    chosen = [value for key, _, value in written if key.partition("@")[0] == "hydra/sweeper"]
    if "basic" in chosen:
        remedy = "leave it out: the same jobs, planned before the first one runs"
        raise Refused([Fault("hydra/sweeper", "is basic, which plans nothing", remedy)])
    return all(name == "planned" for name in chosen)


def side_by_side(arguments: list[str], jobs: int) -> int:
    """Jobs that Hydra's launcher runs on this machine at the same time. joblib takes every core unless told otherwise;
    submitit and ray bring machines of their own. Raises Refused where joblib could not be told so."""
    if "hydra/launcher=joblib" not in arguments:
        return 1
    asked = [item.partition("=")[2] for item in arguments if item.startswith("hydra.launcher.n_jobs=")]
    try:
        number = int(asked[-1]) if asked else -1
    except ValueError:
        number = 0
    if number == 0:
        remedy = "write how many jobs run side by side, or -1: as many as there are cores"
        raise Refused([Fault("hydra.launcher.n_jobs", f"is {asked[-1]}", remedy)])
    cores = hardware()["cores"]
    return max(1, min(jobs, number if number > 0 else cores + 1 + number))


def folder_of(sweeps: Path, name: str, base: dict[str, Any]) -> Path:
    """`<name>`, or `<name>-<hash of the base>` where that folder belongs to another base."""
    ledger = sweeps / name / "sweep.json"
    if not ledger.exists() or json.loads(ledger.read_text()).get("base") == base:
        return sweeps / name
    return sweeps / f"{name}-{hashlib.sha256(json.dumps(base, sort_keys=True).encode()).hexdigest()[:8]}"


def begin(folder: Path, command: str, base: dict[str, Any], axes: list[Axis], jobs: list[Job]) -> None:
    """Enter every job: as waiting, unless it is known already; a job that is refused, with the reason."""
    with _ledger(folder) as ledger:
        ledger |= {"command": command, "base": base}
        for axis in axes:
            values = ledger.setdefault("axes", {}).setdefault(axis.key, [])
            values += [value for value in axis.values if value not in values]
        for job in jobs:
            entry = ledger["jobs"].setdefault(job_name(axes, job), {"status": "waiting"})
            entry["values"] = {axis.key: value for axis, value in zip(axes, job.values, strict=True)}
            if job.plan is None:
                entry |= {"status": "refused", "message": job.refusal}
            elif entry["status"] != "done":
                entry |= {"status": "waiting", "message": ""}


def statuses(folder: Path) -> dict[str, str]:
    """Job -> its status."""
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    return {name: entry["status"] for name, entry in jobs.items()}


def record(folder: Path, job: str, overrides: list[str], status: str, message: str = "", command: str = "") -> None:
    """Write one job's status: running, done, failed, refused, interrupted. `command` is the latest call's."""
    with _ledger(folder) as ledger:
        ledger["command"] = command or ledger.get("command", "")
        entry = ledger["jobs"].setdefault(job, {})
        if "values" not in entry:  # a sweeper chose them as it went
            written = [item.partition("=") for item in overrides]
            entry["values"] = {key: value for key, _, value in written if key in ledger.get("axes", {})}
        entry |= {"overrides": overrides, "status": status, "message": message}


@contextlib.contextmanager
def _ledger(folder: Path) -> Iterator[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sweep.json"
    with (folder / ".sweep.lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        ledger = json.loads(path.read_text()) if path.exists() else {}
        ledger.setdefault("jobs", {})
        yield ledger
        write_json(path, ledger)
