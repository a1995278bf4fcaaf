"""The ledger of a sweep, `sweep.json`: one entry per set of overrides, kept across repeats and interruptions.

Jobs may run in other processes (joblib and others), so each records its own status under a file lock, and run.py reads
the ledger for the sweep's exit status. A job's identity is its overrides, never its number.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

from pipeline.store import write_json

DONE, FAILED, REFUSED = 0, 1, 2
NAMES = {DONE: "done", FAILED: "failed", REFUSED: "refused"}


def name_of(status: int) -> str:
    return NAMES.get(status, "interrupted")


def record(sweep: Path, job: str, overrides: list[str], status: str, message: str = "", command: str = "") -> None:
    """Write one job's status: running, done, failed, refused, interrupted. `command` is the latest call's."""
    sweep.mkdir(parents=True, exist_ok=True)
    path = sweep / "sweep.json"
    with (sweep / ".sweep.lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        ledger = json.loads(path.read_text()) if path.exists() else {"jobs": {}}
        ledger["command"] = command
        ledger["jobs"][job] = {"overrides": overrides, "status": status, "message": message}
        write_json(path, ledger)


def exit_status(statuses: list[int]) -> int:
    """2 if every job was refused, else 1 if any was refused or failed, else 0. An interrupted sweep says so itself."""
    if statuses and all(status == REFUSED for status in statuses):
        return REFUSED
    return FAILED if any(status != DONE for status in statuses) else DONE
