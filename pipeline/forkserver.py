"""A fork server for ranks: one process that has imported the heavy libraries and forks a rank in milliseconds.

Not multiprocessing's: that one imports the driver's `__main__` in every rank, kills nothing when the driver is
killed, and shares the terminal's Ctrl-C. Here each rank leads a process group of its own, so that whatever it
started dies with it; the end of a channel (the driver is gone, however it went) kills its ranks.

The server ends with its first channel, its owner's. That of a sweep listens for more: jobs that run in processes of
their own find its address in the environment and share it, for another one would cost each of them seconds of a core
and half a GiB. Here is the drivers' end; forkserver_process.py is the server.

Channel: JSON lines. To the server {"start": key, "after", "folder", "console", "rank", "world_size", "environment"} and
{"kill": key, "signal"}; from it {"started": key, "pid"}, {"ended": key, "status"} (negative: the signal that ended it),
{"broken": traceback} where an import failed. A rank is forked as soon as the first `after` modules are imported; while
another one is being imported (a second or two) the server hears nothing, nor that a driver is gone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.worker import ROOT

ADDRESS = "POSTTRAIN_FORK_SERVER"  # environment: the socket of the server that the jobs of a sweep share

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
    """A driver's end of one channel; `process` where it is the owner's."""

    def __init__(self, channel: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.channel, self.process = channel, process
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


def shared_server(preload: Sequence[str], console: Path) -> ForkServer:
    """The one that the environment names, else one for all jobs of this process; it ends with the process."""
    servers, key = _servers(), tuple(preload)
    if key not in servers or servers[key].broken:
        servers[key] = _found() or _begun(preload, console)
    return servers[key]


@contextlib.contextmanager
def lent_to_children(preload: Sequence[str], folder: Path) -> Iterator[None]:
    """Start a server for this process and for those that it starts in this context. `folder` is there for this call
    alone: where the process is killed, the server that others can find takes it away."""
    address = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listeners = []
        with contextlib.suppress(OSError):  # a path beyond the 107 bytes that a socket's may have: nothing is shared
            listener.bind(str(address))
            listener.listen()
            listeners, os.environ[ADDRESS] = [listener], str(address)
        server = _servers()[tuple(preload)] = _begun(preload, folder / "console.log", listeners)
    try:
        yield
    finally:
        if server.process is not None:
            server.process.kill()  # it may still be importing
            server.process.wait()
        os.environ.pop(ADDRESS, None)


def _found() -> ForkServer | None:
    """The server of the process that started this one; None where there is none, or none any more."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(os.environ[ADDRESS])
    except (KeyError, OSError):  # OSError: also on another machine, where a launcher brought the environment along
        channel.close()
        return None
    return ForkServer(channel)


def _begun(preload: Sequence[str], console: Path, listeners: Sequence[socket.socket] = ()) -> ForkServer:
    """Start a server. Returns at once: its imports (seconds) go on while the driver prepares."""
    ours, theirs = socket.socketpair()
    ends = [end.fileno() for end in (theirs, *listeners)]
    # Threads that spin while they wait make a stage with two of them ten times slower beside other work.
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | ENVIRONMENT
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), *sys.path[:1], environment.get("PYTHONPATH")]))
    with console.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.forkserver_process", ",".join(map(str, ends)), *preload],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    theirs.close()
    return ForkServer(ours, process)
