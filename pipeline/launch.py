"""Launchers: how the ranks of one stage come to life, and how their end is told.

`local` forks them on this machine, `inline` runs the single rank in this process for debuggers; the ones for several
machines are in launch_cluster.py. When a rank dies the others cannot go on (they would wait in a collective for ever),
so they are killed, and the rank that died first is the one whose traceback is told.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline.artifacts import Port
from pipeline.config import LauncherConfig
from pipeline.forkserver import shared_server
from pipeline.job import DISK_FULL, INTERRUPTED
from pipeline.plan_types import PlannedStage
from pipeline.provenance import visible_devices
from pipeline.worker import OUT_OF_MEMORY_REMEDY, Place, run_rank

PEER_SECONDS = 2.0  # after a rank has said that it lost another one: for the end of that one to be heard of
STRAGGLER_SECONDS = 60.0  # for the other ranks to end, once one was interrupted
DISK_FULL_MESSAGE = "the disk is full: free some space and run again"


@dataclass
class Stop:
    """A request to stop, shared by the driver's signal handlers, its threads and the inline rank."""

    event: threading.Event = field(default_factory=threading.Event)
    number: int = 0  # the signal
    times: int = 0  # from the second on: at once, without a checkpoint

    def request(self, number: int) -> None:
        self.number = self.number or number
        self.times += 1
        self.event.set()


@contextlib.contextmanager
def heard(handle: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and SIGTERM go to `handle` in this context. In a thread, as Hydra's launchers may run a job, nothing
    happens: signals are for the process that the thread belongs to."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.signal(number, lambda got, _: handle(got)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@dataclass
class Outcome:
    """How a stage's ranks ended."""

    status: str  # done | failed | interrupted
    message: str = ""  # one line for people
    traceback: str = ""  # of the rank that failed first
    how: str = ""  # of done: ran | resumed | cached


class Launcher(Protocol):
    def run(self, folder: Path, planned: PlannedStage, stop: Stop) -> Outcome:
        """Run the job in `folder` to its end. Blocks; several stages may do so from threads of their own."""


def make_launcher(cfg: LauncherConfig, console: Path, preload: list[str]) -> Launcher:
    if cfg.kind == "inline":
        return InlineLauncher()
    if cfg.kind == "local":
        return LocalLauncher(console, preload)
    from pipeline.launch_cluster import ClusterLauncher

    return ClusterLauncher(cfg, console)


@dataclass
class InlineLauncher:
    """The same function in this process; its output stays on the screen."""

    def run(self, folder: Path, planned: PlannedStage, stop: Stop) -> Outcome:
        environment = dict(os.environ)
        status = run_rank(folder, Place(), stop.event)
        os.environ.clear()  # what a rank sets must not reach the next stage, nor what the driver starts
        os.environ.update(environment)
        return outcome_of(folder, {0: status}, first=0)


class LocalLauncher:
    """`ranks` processes of this machine, forked from a server that starts importing when this is made. A stage that
    holds no model waits for the first module of `preload` only, the others are those of models."""

    def __init__(self, console: Path, preload: list[str]) -> None:
        self.console = console
        self.server, self.modules = shared_server(preload, console), len(preload)
        self.devices = Devices(visible_devices())

    def run(self, folder: Path, planned: PlannedStage, stop: Stop) -> Outcome:
        with self.devices.lent(planned.ranks) as devices:
            return self._run(folder, planned, stop, devices)

    def _run(self, folder: Path, planned: PlannedStage, stop: Stop, devices: list[str]) -> Outcome:
        inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if planned.ranks > 1:
            (folder / "rendezvous").unlink(missing_ok=True)
            environment["POSTTRAIN_RENDEZVOUS"] = str((folder / "rendezvous").resolve())
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        keys = {f"{folder.name}/{time.monotonic_ns()}/{rank}": rank for rank in range(planned.ranks)}
        for key, rank in keys.items():
            request = {
                "folder": str(folder.resolve()),
                "console": str(self.console.resolve()),
                "after": self.modules if has_model(planned) else min(1, self.modules),
                "rank": rank,
                "world_size": planned.ranks,
                "environment": environment,
            }
            self.server.start(key, inbox, request)
        return self._follow(folder, keys, inbox, stop)

    def _follow(self, folder: Path, keys: dict[str, int], inbox: queue.Queue[dict[str, Any]], stop: Stop) -> Outcome:
        statuses: dict[int, int] = {}
        first, asked, deadline = None, 0, None
        while len(statuses) < len(keys):
            alive = [key for key, rank in keys.items() if rank not in statuses]
            if stop.times > asked:
                asked = stop.times
                for key in alive:
                    self.server.kill(key, signal.SIGTERM if asked == 1 else signal.SIGKILL)
            if deadline is not None and time.monotonic() > deadline:
                deadline = None
                for key in alive:
                    self.server.kill(key, signal.SIGKILL)
            try:
                message = inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if "broken" in message:
                return Outcome("failed", message["broken"].strip().splitlines()[-1], message["broken"])
            if "ended" in message:
                rank, status = keys[message["ended"]], message["status"]
                statuses[rank] = status
                lost_peer = lost_only_a_peer(folder, rank)
                # Who noticed may be heard of before the one who died; once we have killed, nothing more is learnt.
                better = first is not None and deadline is not None and lost_only_a_peer(folder, first)
                if status != 0 and (first is None or (better and not lost_peer)):
                    first = rank
                    patience = STRAGGLER_SECONDS if status == INTERRUPTED else PEER_SECONDS if lost_peer else 0.0
                    deadline = time.monotonic() + patience
        return Outcome("interrupted") if asked > 1 and first is not None else outcome_of(folder, statuses, first)


@dataclass
class Devices:
    """The GPUs of this machine, lent to the stages that run side by side: a rank has one of its own."""

    free: list[str]
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.total = len(self.free)

    @contextlib.contextmanager
    def lent(self, ranks: int) -> Iterator[list[str]]:
        """Names for CUDA_VISIBLE_DEVICES; [] where there are fewer than ranks (the plan has warned or refused)."""
        wanted = ranks if ranks <= self.total else 0
        with self.changed:
            self.changed.wait_for(lambda: len(self.free) >= wanted)
            taken, self.free = self.free[:wanted], self.free[wanted:]
        try:
            yield taken
        finally:
            with self.changed:
                self.free = sorted(self.free + taken)
                self.changed.notify_all()


def has_model(planned: PlannedStage) -> bool:
    """Whether a port of the stage holds one."""
    ports: dict[str, Port] = importlib.import_module(type(planned.cfg).__module__).OUTPUTS
    kinds = [one.kind for one in planned.inputs.values()] + [port.kind for port in ports.values()]
    return "model" in kinds or "reward_model" in kinds


def lost_only_a_peer(folder: Path, rank: int) -> bool:
    path = folder / f"failure-{rank}.json"
    return path.exists() and bool(json.loads(path.read_text())["lost_peer"])


def outcome_of(folder: Path, statuses: dict[int, int], first: int | None) -> Outcome:
    """What to tell about ranks that ended so; `first` is the one that ended badly before the others."""
    if first is None or statuses[first] == 0:
        return Outcome("done")
    status = statuses[first]
    if status == INTERRUPTED:
        return Outcome("interrupted")
    where = f"rank {first} of {len(statuses)}: " if len(statuses) > 1 else ""
    path = folder / f"failure-{first}.json"
    if path.exists():
        failure = json.loads(path.read_text())
        return Outcome("failed", where + failure["message"], failure["traceback"])
    if status == DISK_FULL:
        return Outcome("failed", where + DISK_FULL_MESSAGE)
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    hint = f"; where that was for want of memory: {OUT_OF_MEMORY_REMEDY}" if status == -signal.SIGKILL else ""
    return Outcome("failed", f"{where}the process was ended by {name}{hint}" if status < 0 else f"{where}exit {name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
