"""The ledger of a sweep, `sweep.json`: one entry per set of overrides, kept across repeats and interruptions.

Jobs may run in other processes (joblib and others), so each records its own status under a file lock, and run.py reads
the ledger for the sweep's exit status. A job's identity is its overrides, never its number.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.store import write_json

DONE, FAILED, REFUSED = 0, 1, 2
NAMES = {DONE: "done", FAILED: "failed", REFUSED: "refused"}


def name_of(status: int) -> str:
    return NAMES.get(status, "interrupted")


def ledger_path(sweep: Path) -> Path:
    return sweep / "sweep.json"


def record(sweep: Path, job: str, overrides: list[str], status: str, message: str = "") -> None:
    """Write one job's status: running, done, failed, refused, interrupted."""

    def change(ledger: dict[str, Any]) -> None:
        ledger["jobs"][job] = {"overrides": overrides, "status": status, "message": message}

    _update(sweep, change)


def begin(sweep: Path, command: list[str]) -> None:
    """Remember the command of this call; earlier jobs stay in the ledger."""
    _update(sweep, lambda ledger: ledger.update(command=command))


def exit_status(statuses: list[int]) -> int:
    """2 if every job was refused, else 1 if any did not end well, else 0. An interrupted sweep says so itself."""
    if statuses and all(status == REFUSED for status in statuses):
        return REFUSED
    return FAILED if any(status != DONE for status in statuses) else DONE


def _update(sweep: Path, change: Callable[[dict[str, Any]], None]) -> None:
    sweep.mkdir(parents=True, exist_ok=True)
    path = ledger_path(sweep)
    with (sweep / ".sweep.lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        ledger = json.loads(path.read_text()) if path.exists() else {"command": [], "jobs": {}}
        change(ledger)
        write_json(path, ledger)
