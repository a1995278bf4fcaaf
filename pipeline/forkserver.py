"""A fork server for ranks: one process that has imported the heavy libraries and forks a rank in milliseconds.

Not multiprocessing's: that one imports the driver's `__main__` in every rank, kills nothing when the driver is
killed, and shares the terminal's Ctrl-C. Here each rank leads a process group of its own, so that whatever it
started dies with it; the end of a channel (the driver is gone, however it went) kills its ranks.

The server ends with its first channel, its owner's. That of a sweep listens for more: jobs that run in processes of
their own find its address in the environment and share it, for another one would cost each of them seconds of a core
and half a GiB.

Channel: JSON lines. To the server {"start": key, "folder", "console", "rank", "world_size", "environment"} and
{"kill": key, "signal"}; from it {"ready": seconds}, {"started": key, "pid"}, {"ended": key, "status"}
(negative: the signal that ended it), {"broken": traceback} where the preload failed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.worker import ROOT, Place, die_with_parent, listen_for_stop, run_rank

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
def lent_to_children(preload: Sequence[str], console: Path) -> Iterator[None]:
    """Start a server for this process and for those that it starts in this context."""
    address = Path(tempfile.mkdtemp(prefix="ranks_")) / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listeners = []
        with contextlib.suppress(OSError):  # a path beyond the 107 bytes that a socket's may have: nothing is shared
            listener.bind(str(address))
            listener.listen()
            listeners, os.environ[ADDRESS] = [listener], str(address)
        server = _servers()[tuple(preload)] = _begun(preload, console, listeners)
    try:
        yield
    finally:
        if server.process is not None:
            server.process.kill()  # it may still be importing
            server.process.wait()
        os.environ.pop(ADDRESS, None)
        shutil.rmtree(address.parent, ignore_errors=True)


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
            [sys.executable, "-m", "pipeline.forkserver", ",".join(map(str, ends)), *preload],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    theirs.close()
    return ForkServer(ours, process)


@dataclass(eq=False)
class Client:
    """The server's end of one channel."""

    channel: socket.socket
    unread: bytes = b""
    ranks: dict[int, str] = field(default_factory=dict)  # pid -> key

    def fileno(self) -> int:
        return self.channel.fileno()

    def tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.sendall((json.dumps(message) + "\n").encode())

    def end(self) -> None:
        for pid in self.ranks:
            kill_group(pid)
        self.channel.close()

    def requests(self) -> list[dict[str, Any]] | None:
        """What has arrived; None at the channel's end."""
        try:
            received = self.channel.recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            return None
        *lines, self.unread = (self.unread + received).split(b"\n")
        return [json.loads(line) for line in lines]


def serve(channel: socket.socket, listeners: list[socket.socket], preload: list[str]) -> None:
    """The server's loop. Single-threaded, so that forking is safe."""
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    owner = Client(channel)
    clients = [owner]
    try:
        for name in preload:
            importlib.import_module(name)
    except Exception:
        broken = traceback.format_exc()
        while listeners and select.select(listeners, [], [], 0)[0]:
            clients.append(Client(listeners[0].accept()[0]))
        for client in clients:
            client.tell({"broken": broken})
        return
    gc.collect()
    gc.freeze()  # a collection in a rank would copy every page that it shares with the others
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    owner.tell({"ready": round(time.monotonic() - began, 2)})
    while owner in clients:
        watched: list[Any] = [*listeners, wake, *clients]
        readable, _, _ = select.select(watched, [], [])
        if wake in readable:
            os.read(wake, 4096)
            reap(clients)
        for client in [one for one in clients if one in readable]:
            requests = client.requests()
            if requests is None:
                client.end()
                clients.remove(client)
            for request in requests or []:
                open_here = [wake, alarm, *(one.fileno() for one in listeners), *(one.fileno() for one in clients)]
                answer(client, request, open_here)
        clients += [Client(one.accept()[0]) for one in listeners if one in readable]
    for client in clients:
        client.end()


def answer(client: Client, message: dict[str, Any], inherited: list[int]) -> None:
    if "kill" in message:
        for pid in [pid for pid, key in client.ranks.items() if key == message["kill"]]:
            if message["signal"] == signal.SIGKILL:
                kill_group(pid)
            else:
                os.kill(pid, message["signal"])
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a stop request waits until the rank can hear it
    pid = os.fork()
    if pid == 0:
        become_rank(message, inherited)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # in both, so that the group is there before anybody signals it
    client.ranks[pid] = message["start"]
    client.tell({"started": message["start"], "pid": pid})


def become_rank(message: dict[str, Any], inherited: list[int]) -> None:
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


def reap(clients: list[Client]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            kill_group(pid)  # what a rank started does not outlive it
            for client in [one for one in clients if pid in one.ranks]:
                client.tell({"ended": client.ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    owner, *listeners = (socket.socket(fileno=int(number)) for number in sys.argv[1].split(","))
    serve(owner, listeners, sys.argv[2:])
    os._exit(0)  # taking the large libraries apart would last seconds
