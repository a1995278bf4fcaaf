"""A fork server for ranks: one process that has imported the heavy libraries and forks a rank in milliseconds.

Not multiprocessing's: that one imports the driver's `__main__` in every rank, kills nothing when the driver is
killed, and shares the terminal's Ctrl-C. Here each rank leads a process group of its own, so that whatever it
started dies with it; the end of the channel (the driver is gone, however it went) kills them all.

Channel: JSON lines. To the server {"start": key, "folder", "console", "rank", "world_size", "environment"} and
{"kill": key, "signal"}; from it {"ready": seconds}, {"started": key, "pid"}, {"ended": key, "status"}
(negative: the signal that ended it), {"broken": traceback} where the preload failed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from pipeline.worker import ROOT, Place, die_with_parent, listen_for_stop, run_rank

# No library may start a thread pool before the fork, nor look at CUDA in a way that forbids it to the children.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONHASHSEED": "0",
}


class ForkServer:
    """The driver's end. `start` returns at once; the imports (seconds) go on while the driver prepares."""

    def __init__(self, preload: list[str], console: Path) -> None:
        self.channel, theirs = socket.socketpair()
        command = [sys.executable, "-m", "pipeline.forkserver", str(theirs.fileno()), *preload]
        # Threads that spin while they wait make a stage with two of them ten times slower beside other work.
        environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | ENVIRONMENT
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT), *sys.path[:1], environment.get("PYTHONPATH")])
        )
        with console.open("a") as log:
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        theirs.close()
        self.lock = threading.Lock()
        self.broken = ""  # why it cannot fork any more
        self.inboxes: dict[str, queue.Queue[dict[str, Any]]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, key: str, inbox: queue.Queue[dict[str, Any]], request: dict[str, Any]) -> None:
        """Fork a rank; what happens to it arrives in `inbox`, which several ranks may share."""
        with self.lock:
            self.inboxes[key] = inbox
            if self.broken:
                inbox.put({"broken": self.broken})
        self._send({"start": key, **request})

    def kill(self, key: str, number: int) -> None:
        """Signal a rank: SIGTERM asks it alone, SIGKILL ends its whole process group."""
        self._send({"kill": key, "signal": number})

    @property
    def alive(self) -> bool:
        return not self.broken and self.process.poll() is None

    def _send(self, message: dict[str, Any]) -> None:
        with self.lock, contextlib.suppress(BrokenPipeError):  # its end is reported by _listen
            self.channel.sendall((json.dumps(message) + "\n").encode())

    def _listen(self) -> None:
        reason = "the fork server died"
        with self.channel.makefile() as lines, contextlib.suppress(OSError):
            for line in lines:
                message = json.loads(line)
                reason = message.get("broken", reason)
                key = message.get("started") or message.get("ended")
                if key in self.inboxes:
                    self.inboxes[key].put(message)
        with self.lock:
            self.broken = reason
            for inbox in self.inboxes.values():
                inbox.put({"broken": reason})


@functools.cache
def _servers() -> dict[tuple[str, ...], ForkServer]:
    return {}


def shared_server(preload: list[str], console: Path) -> ForkServer:
    """One server a process, for all jobs of a sweep: the imports are paid once. It ends with the process."""
    servers, key = _servers(), tuple(preload)
    if key not in servers or not servers[key].alive:
        servers[key] = ForkServer(preload, console)
    return servers[key]


def serve(channel: socket.socket, preload: list[str]) -> None:
    """The server's loop. Single-threaded, so that forking is safe."""
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        for name in preload:
            importlib.import_module(name)
    except Exception:
        tell(channel, {"broken": traceback.format_exc()})
        return
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tell(channel, {"ready": round(time.monotonic() - began, 2)})
    ranks: dict[int, str] = {}  # pid -> key
    unread = b""
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [])
        if wake in readable:
            os.read(wake, 4096)
            reap(channel, ranks)
        if channel.fileno() in readable:
            received = channel.recv(65536)
            if not received:
                break
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                answer(channel, ranks, json.loads(line), (wake, alarm))
    for pid in ranks:
        kill_group(pid)


def answer(channel: socket.socket, ranks: dict[int, str], message: dict[str, Any], inherited: tuple[int, int]) -> None:
    if "kill" in message:
        for pid in [pid for pid, key in ranks.items() if key == message["kill"]]:
            if message["signal"] == signal.SIGKILL:
                kill_group(pid)
            else:
                os.kill(pid, message["signal"])
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a stop request waits until the rank can hear it
    pid = os.fork()
    if pid == 0:
        channel.close()
        become_rank(message, inherited)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # in both, so that the group is there before anybody signals it
    ranks[pid] = message["start"]
    tell(channel, {"started": message["start"], "pid": pid})


def become_rank(message: dict[str, Any], inherited: tuple[int, int]) -> None:
    """In the child: never returns."""
    status = 1
    try:
        die_with_parent()
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        console = os.open(message["console"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(console, 1)
        os.dup2(console, 2)
        os.environ.update(message["environment"])
        stop = threading.Event()
        folder = Path(message["folder"])
        listen_for_stop(folder, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        status = run_rank(folder, Place(message["rank"], message["world_size"], message["rank"]), stop)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def reap(channel: socket.socket, ranks: dict[int, str]) -> None:
    for pid in list(ranks):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            kill_group(pid)  # what a rank started does not outlive it
            tell(channel, {"ended": ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def tell(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        channel.sendall((json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os._exit(0)  # taking the large libraries apart would last seconds
