"""Jobs of a sweep in processes of their own (joblib): how they stop, and what happens when one of them is killed.

All of it goes over a few files in the folder of the call: `stop` where the sweep was asked to end, `pids` of the jobs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from pipeline import sweep
from pipeline.launch import Stop, heard
from pipeline.worker import die_with_parent

CALL = "POSTTRAIN_CALL"  # environment: "<pid of run.py> <folder of the call>"
ASKED = Stop()  # what this process was asked by signals while its jobs ran
TRIES = 2  # of a job whose process is killed: it may have been killed for another one's memory


def is_apart() -> bool:
    """Whether this process is one that joblib started for jobs of a sweep."""
    return multiprocessing.current_process().name.startswith("LokyProcess")


def is_stopped() -> bool:
    return _file("stop").exists()


def stop() -> None:
    """What waits is not begun."""
    with contextlib.suppress(OSError):  # on another machine, where a launcher brought the environment along
        _file("stop").touch()


def begin_job() -> None:
    """Called by a job in a process of its own: it ends with run.py, however that goes, and hears of a stop from it."""
    die_with_parent()
    if os.getppid() != int(os.environ[CALL].split(" ", 1)[0]):  # it was killed before this process had its job
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())  # until the runner listens, and after
    with _file("pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


def stop_on_signals(waits: bool) -> contextlib.AbstractContextManager[None]:
    """SIGINT and SIGTERM to run.py, kept in ASKED. Jobs that run here have the runner's handlers; in between,
    KeyboardInterrupt is raised. With `waits` jobs run apart: they are asked for checkpoints and waited for, and the
    second signal ends all.
    """

    def handle(number: int) -> None:
        ASKED.request(number)
        if not waits or ASKED.times > 1:
            raise KeyboardInterrupt
        stop()
        if number == signal.SIGTERM:  # a terminal's Ctrl-C has reached them as it reached us
            pids = _file("pids").read_text().split() if _file("pids").exists() else []
            for pid in set(map(int, pids)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    return heard(handle)


def launch_all(launch: Callable[[list[list[str]]], Any], jobs: dict[str, list[str]], folder: Path) -> Any:
    """Launch jobs (name -> overrides), and once more those that were lost with a process that was killed; `folder` is
    the sweep's.

    joblib gives up everything when one of its processes dies, and does not say which job died with it.
    """
    tries: Counter[str] = Counter()
    while jobs:
        try:
            return launch(list(jobs.values()))
        except BrokenExecutor:
            if is_stopped():
                raise KeyboardInterrupt from None
        states = sweep.statuses(folder)
        tries.update(name for name in jobs if states[name] == "running")
        for name in [name for name in jobs if tries[name] >= TRIES]:
            message = f"its process was killed, {TRIES} times (for want of memory?)"
            sweep.record(folder, name, jobs[name], "failed", message)
            states[name] = "failed"
        jobs = {name: one for name, one in jobs.items() if states[name] in ("waiting", "running")}
        print(f"a process was killed; jobs that are left: {len(jobs)}", flush=True)
    return []


def _file(name: str) -> Path:
    return Path(os.environ[CALL].split(" ", 1)[1]) / name
