"""A small pool of killable processes that run math-verify, usable from any thread.

Every question has a deadline; what does not answer by then is killed and started again. So a bomb costs its deadline
once, not five seconds for each response of its group: verdicts are remembered, also that one.
"""

from __future__ import annotations

import json
import queue
import selectors
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

DEADLINE_SECONDS = 2.0
START_SECONDS = 60.0  # importing sympy on a busy machine
WORKERS = 2


class TooLong(RuntimeError):
    """The question was beyond the limits of time or memory."""


class _Worker:
    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.ready = False

    def ask(self, gold: str, answer: str | None, seconds: float) -> dict:
        if not self.ready:
            self._start()
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps([gold, answer]) + "\n").encode())
        self.process.stdin.flush()
        return json.loads(self._read(seconds))

    def _start(self) -> None:
        """Wait for the imports. A worker that cannot start is an error of the installation, never a wrong answer."""
        try:
            self.ready = self._read(START_SECONDS) == b"ready\n"
        except TooLong as error:
            self.kill()
            raise RuntimeError("math-verify does not start: try `python -c 'import math_verify'`") from error

    def _read(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout=seconds):
                raise TooLong
        line = self.process.stdout.readline()
        if not line:
            raise TooLong  # the worker died: out of memory
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


_idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
for _ in range(WORKERS):
    _idle.put(None)


@lru_cache(maxsize=65536)
def ask_math_verify(gold: str, answer: str | None, seconds: float = DEADLINE_SECONDS) -> bool | None:
    """Whether math-verify holds `answer` equal to `gold` (answer None: whether it can read the gold at all).

    None: the gold is no mathematics. False where the question was beyond time or memory, or crashed the algebra.
    """
    worker = _idle.get()
    keep: _Worker | None = None
    try:
        worker = worker or _Worker()
        reply = worker.ask(gold, answer, seconds)
        keep = worker
    except (TooLong, BrokenPipeError):
        assert worker is not None
        worker.kill()
        reply = {"error": "TooLong"}
    finally:
        _idle.put(keep)
    return False if "error" in reply else reply["right"]
