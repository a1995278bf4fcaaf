"""What a run is doing, and what came out of it, read from outside: its files and the process table. For torture.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

UPDATES_PER_ROLLOUT = 2  # of the smoke scale
PATIENCE_AFTER_DEATH = 180.0  # seconds, for machines that are busy: a fork server still importing ends after that
MEASURED = ("time/", "memory/")  # of the machine, not of the model


def phase_of(store: Path) -> tuple[str, str]:
    """(phase, kind of stage); ("start", "") where nothing can be seen yet."""
    for partial in store.glob(".partial/*"):
        kind = partial.name.rpartition("-")[0]
        if (partial / "result.json").exists() or (partial / "artifact.json").exists():
            return "publish", kind
        if not (partial / "job.json").exists() or not is_live(partial, kind):
            return "start", kind
        if any(partial.glob("checkpoints/.draft-*")):
            return "checkpoint write", kind
        if kind == "evaluate":
            return "evaluation", kind
        steps, rollouts = lines(partial / "metrics.jsonl"), sampled_steps(partial / "samples.jsonl")
        sampling = kind == "rl" and rollouts * UPDATES_PER_ROLLOUT <= steps
        return "sampling" if sampling else "update", kind
    return "start", ""


def is_live(partial: Path, kind: str) -> bool:
    """Whether a rank of this attempt is at work, so that the records in the folder are its own: it runs, and it has
    said what it resumed from, or has shown progress, or writes the first records that there are."""
    if not (partial / "workers.lock").exists():
        return False
    began, told = (partial / "job.json").stat().st_mtime, partial / "notes.jsonl"
    fresh = told.exists() and told.stat().st_mtime > began
    first = not any(partial.glob("checkpoints/step-*"))
    recorded = lines(partial / "metrics.jsonl") + lines(partial / "samples.jsonl") > 0
    return kind == "evaluate" or fresh or (partial / "progress.json").exists() or (first and recorded)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def sampled_steps(path: Path) -> int:
    rows = path.read_text().splitlines(keepends=True) if path.exists() else []
    return len({json.loads(row)["step"] for row in rows if row.endswith("\n")})


def descendants(pid: int) -> dict[int, int]:
    """process -> parent, of everything below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = {child: parent for child, its in parents.items() if its == parent}
        found |= children
        waiting += children
    return found


def left_behind(family: dict[int, int]) -> str:
    """What is still running of processes that should have died, or nothing."""
    deadline = time.monotonic() + PATIENCE_AFTER_DEATH
    while alive := [pid for pid in family if is_running(pid)]:
        if time.monotonic() > deadline:
            return f"processes left behind: {alive}"
        time.sleep(0.05)
    return ""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def results(store: Path) -> dict[str, Any]:
    """entry -> digests, final metrics and metric lines of everything sealed, without clock values."""
    found: dict[str, Any] = {}
    for path in sorted(store.glob("*/artifact.json")):
        manifest = json.loads(path.read_text())
        record = path.with_name("metrics.jsonl")
        found[path.parent.name] = {
            "digests": {port: output["digest"] for port, output in manifest["outputs"].items()},
            "metrics": timeless(manifest["metrics"]),
            "lines": [timeless(json.loads(row)) for row in record.read_text().splitlines()] if record.exists() else [],
        }
    return found


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if not key.startswith(MEASURED)}


def differences(store: Path, reference: dict[str, Any]) -> str:
    """What came out otherwise than undisturbed, or nothing."""
    found = results(store)
    wrong = [
        f"{entry}: {'is missing' if entry not in found else ', '.join(k for k in want if found[entry][k] != want[k])}"
        for entry, want in reference.items()
        if found.get(entry) != want
    ]
    return "; ".join(wrong)
