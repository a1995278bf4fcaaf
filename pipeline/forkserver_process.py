"""The fork server's own process (see forkserver.py): imports, forks ranks, tells how they end.

Single-threaded, so that forking is safe: also between two imports, which is where ranks that can do without the rest
begin.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.forkserver import ADDRESS
from pipeline.job import INTERRUPTED
from pipeline.worker import Place, die_with_parent, listen_for_stop, run_rank


@dataclass(eq=False)
class Client:
    """The server's end of one channel."""

    channel: socket.socket
    unread: bytes = b""
    ranks: dict[int, str] = field(default_factory=dict)  # pid -> key
    waiting: list[dict[str, Any]] = field(default_factory=list)  # requests to start, until enough is imported

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


class Server:
    """Of one or several channels; it ends with that of its owner."""

    def __init__(self, channel: socket.socket, listeners: list[socket.socket], preload: list[str]) -> None:
        self.owner, self.listeners, self.left = Client(channel), listeners, list(preload)
        self.clients, self.imported = [self.owner], 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self.wake, self.alarm = os.pipe()
        os.set_blocking(self.alarm, False)
        signal.set_wakeup_fd(self.alarm)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until the owner is gone, or an import fails."""
        while self.owner in self.clients:
            if self.hear():
                continue  # nothing is forked or imported while messages wait: one may be a kill, or a driver's end
            self.fork_waiting()
            try:
                self.import_next()
            except Exception:
                self.give_up(traceback.format_exc())
                return
        for client in self.clients:
            client.end()
        for listener in self.listeners:  # the owner was killed, or it would have ended us first
            kill_call(listener.getsockname())
            shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)

    def hear(self) -> bool:
        """Take what has arrived; waits for something where there is nothing else to do. False: there was nothing."""
        watched: list[Any] = [*self.listeners, self.wake, *self.clients]
        busy = self.left or any(client.waiting for client in self.clients)
        readable, _, _ = select.select(watched, [], [], 0 if busy else None)
        if self.wake in readable:
            os.read(self.wake, 4096)
            reap(self.clients)
        for client in [one for one in self.clients if one in readable]:
            requests = client.requests()
            if requests is None:
                client.end()
                self.clients.remove(client)
            for request in requests or []:
                if "kill" in request:
                    kill(client, request["kill"], request["signal"])
                elif self.is_ready(request):
                    self.fork(client, request)  # now: a request to stop it may be right behind
                else:
                    client.waiting.append(request)
        self.clients += [Client(one.accept()[0]) for one in self.listeners if one in readable]
        return bool(readable)

    def import_next(self) -> None:
        if not self.left:
            return
        importlib.import_module(self.left.pop(0))
        self.imported += 1
        if not self.left:
            gc.collect()
            gc.freeze()  # a collection in a rank would copy every page that it shares with the others

    def give_up(self, broken: str) -> None:
        """Told to everybody, also to those who have only knocked."""
        while self.listeners and select.select(self.listeners, [], [], 0)[0]:
            self.clients.append(Client(self.listeners[0].accept()[0]))
        for client in self.clients:
            client.tell({"broken": broken})
            client.end()

    def is_ready(self, request: dict[str, Any]) -> bool:
        return not self.left or request["after"] <= self.imported

    def fork_waiting(self) -> None:
        for client in self.clients:
            for request in filter(self.is_ready, list(client.waiting)):
                client.waiting.remove(request)
                self.fork(client, request)

    def fork(self, client: Client, request: dict[str, Any]) -> None:
        sockets = [*self.listeners, *(one.channel for one in self.clients)]
        fork_rank(client, request, [self.wake, self.alarm, *(one.fileno() for one in sockets)])


def kill(client: Client, key: str, number: int) -> None:
    """A rank that is not forked yet never will be; asked to stop, it ends as one that had no step to take back."""
    for request in [one for one in client.waiting if one["start"] == key]:
        client.waiting.remove(request)
        client.tell({"ended": key, "status": INTERRUPTED if number == signal.SIGTERM else -number})
    for pid in [pid for pid, one in client.ranks.items() if one == key]:
        if number == signal.SIGKILL:
            kill_group(pid)
        else:
            os.kill(pid, number)


def fork_rank(client: Client, message: dict[str, Any], inherited: list[int]) -> None:
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


def kill_call(address: str) -> None:
    """End what a killed run.py has started and what would have shared this server: joblib's processes may not have
    begun a job yet, and would wait for one for minutes. Its resource tracker is left: it tidies up behind them, and
    then ends."""
    mark = f"{ADDRESS}={address}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or another user's
            of_the_call = mark in (folder / "environ").read_bytes() and int(folder.name) != os.getpid()
            if of_the_call and b"resource_tracker" not in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    owner, *listeners = (socket.socket(fileno=int(number)) for number in sys.argv[1].split(","))
    Server(owner, listeners, sys.argv[2:]).serve()
    os._exit(0)  # taking the large libraries apart would last seconds
