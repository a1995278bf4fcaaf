"""Jobs of a sweep in processes of their own (joblib): how they stop, and what happens when one of them is killed.

All of it goes over a few files in the folder of the call: `stop` where the sweep was asked to end, `pids` of the jobs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

from pipeline import sweep
from pipeline.worker import die_with_parent

CALL = "POSTTRAIN_CALL"  # environment: "<pid of run.py> <folder of the call>"
TRIES = 2  # of a job whose process is killed: it may have been killed for another one's memory


def is_apart() -> bool:
    """Whether this process is one that joblib started for jobs of a sweep."""
    return os.getppid() == int(os.environ[CALL].split(" ", 1)[0])


def is_stopped() -> bool:
    return _file("stop").exists()


def stop() -> None:
    """What waits is not begun."""
    with contextlib.suppress(OSError):  # on another machine, where a launcher brought the environment along
        _file("stop").touch()


def begin_job() -> None:
    """Called by a job in a process of its own: it ends with run.py, however that goes, and hears of a stop from it."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop())  # until the runner listens, and after
    with _file("pids").open("a") as file:
        file.write(f"{os.getpid()}\n")


@contextlib.contextmanager
def stop_on_signals(folder: Path, waits: bool) -> Iterator[Stopped]:
    """SIGINT and SIGTERM to run.py. Jobs that run here have the runner's handlers; in between, KeyboardInterrupt is
    raised. With `waits` jobs run apart: they are asked for checkpoints and waited for, and the second signal ends all.
    """
    stopped = Stopped()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handle(number: int, _: Any) -> None:
        stopped.number = stopped.number or number
        if not waits or (folder / "stop").exists():
            raise KeyboardInterrupt
        (folder / "stop").touch()
        if number == signal.SIGTERM:  # a terminal's Ctrl-C has reached them as it reached us
            for pid in set(map(int, _read(folder / "pids").split())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Stopped:
    number = 0  # the signal


def launch_all(launch: Callable[[list[list[str]]], Any], jobs: list[list[str]], folder: Path) -> Any:
    """Launch jobs, and once more those that were lost with a process that was killed; `folder` is the sweep's.

    joblib gives up everything when one of its processes dies, and does not say which job died with it.
    """
    tries: Counter[str] = Counter()
    while True:
        try:
            return launch(jobs)
        except BrokenExecutor:
            if is_stopped():
                raise KeyboardInterrupt from None
            states, left = sweep.statuses(folder), []
            for one in jobs:
                name = sweep.name_in(one)
                tries[name] += states[name] == "running"
                if tries[name] >= TRIES:
                    message = f"its process was killed, {TRIES} times (for want of memory?)"
                    sweep.record(folder, name, one, "failed", message)
                elif states[name] in ("waiting", "running"):
                    left.append(one)
            print(f"a process was killed; jobs that are left: {len(left)}", flush=True)
            jobs = left
            if not jobs:
                return []


@functools.cache
def _folder(call: str) -> Path:
    return Path(call.split(" ", 1)[1])


def _file(name: str) -> Path:
    return _folder(os.environ[CALL]) / name


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
