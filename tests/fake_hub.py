"""A hub on this machine: an HTTP server with the few answers that huggingface_hub asks for. `answers()` makes this
process ask there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline import hub as client


@dataclass
class FakeHub:
    """`heads`: "models/org/name" -> commit of its default branch (of branch b: "models/org/name@b");
    `folders`: "models/org/name" -> the folder that every commit of it holds; `asked`: paths of all requests."""

    url: str = ""
    heads: dict[str, str] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def info(self, path: str) -> dict | None:
        """/api/models/org/name, or the same with /revision/NAME."""
        repository, _, revision = path.removeprefix("/api/").partition("/revision/")
        key = f"{repository}@{revision}" if revision and revision != "main" else repository
        commit = revision if revision in self.heads.values() else self.heads.get(key)
        return {"id": repository.partition("/")[2], "sha": commit, "siblings": []} if commit else None

    def tree(self, path: str) -> list[dict] | None:
        """/api/models/org/name/tree/COMMIT."""
        folder = self.folders.get(path.removeprefix("/api/").partition("/tree/")[0])
        if folder is None:
            return None
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        return [
            {"type": "file", "path": str(file.relative_to(folder)), "size": file.stat().st_size, "oid": etag(file)}
            for file in files
        ]

    def file(self, path: str) -> tuple[Path, str] | None:
        """/org/name/resolve/COMMIT/FILE (a dataset's begins with /datasets); the file and the commit."""
        repository, _, rest = path.strip("/").partition("/resolve/")
        commit, _, name = rest.partition("/")
        key = repository if repository.startswith("datasets/") else f"models/{repository}"
        file = self.folders[key] / name
        return (file, commit) if file.is_file() else None


def etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def serve() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(False)

        def do_GET(self) -> None:
            self.answer(True)

        def answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(path)
            headers, body = {"Content-Type": "application/json"}, b"{}"
            if "/resolve/" in path:
                found = hub.file(path)
                if found:
                    body = found[0].read_bytes()
                    headers = {"ETag": f'"{etag(found[0])}"', "X-Repo-Commit": found[1]}
            else:
                found = hub.tree(path) if "/tree/" in path else hub.info(path)
                body = json.dumps(found or {"error": "not here"}).encode()
            if not found:
                headers["X-Error-Code"] = "RevisionNotFound" if "/revision/" in path else "RepoNotFound"
            self.send_response(200 if found else 404)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()


@contextlib.contextmanager
def answers(cache: Path) -> Iterator[FakeHub]:
    """The hub of this process until the end of the block; what is downloaded goes to `cache`."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch, serve() as found:
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, found.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        patch.setattr(constants, "ENDPOINT", found.url)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        client.ask.cache_clear()
        yield found
    client.ask.cache_clear()
