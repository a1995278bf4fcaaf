"""What a running stage is given to talk to the outside: output folders, metrics, samples, progress, stop requests.

One `Context` a rank. Only rank 0 writes. `metrics.jsonl` is the record; trackers and displays follow it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Metrics = dict[str, float]


@dataclass
class Context:
    """The surroundings of one rank of one running stage."""

    stage: str  # name in the pipeline, also the key of sampling noise
    workdir: Path  # the unsealed result; outputs, metrics and checkpoints live below it
    seed: int
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    threads: int = 1
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  # output port -> declared facts
    stop: threading.Event = field(default_factory=threading.Event)  # set by SIGTERM and Ctrl-C
    started: float = field(default_factory=time.monotonic)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def checkpoints(self) -> Path:
        """Folder of the stage's own resume checkpoints; removed when the result is sealed."""
        return self.workdir / "checkpoints"

    def output(self, port: str) -> Path:
        """The folder to fill for an output port. Rank 0 writes it."""
        path = self.workdir / port
        if self.is_main:
            path.mkdir(parents=True, exist_ok=True)
        return path

    def declare(self, port: str, **facts: Any) -> None:
        """Facts about an output, sealed with it and checked by the stages that read it."""
        self.facts.setdefault(port, {}).update(facts)

    def log(self, step: int, metrics: Metrics) -> None:
        """One line of metrics.jsonl. Keys are `group/name`; clock values go under `time/`."""
        if self.is_main:
            line = {"step": step, **{key: _plain(value) for key, value in metrics.items()}}
            _append(self.workdir / "metrics.jsonl", line)

    def samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """A few responses for people to read (samples.jsonl): prompt, response, reward, ..."""
        if self.is_main:
            for row in rows:
                _append(self.workdir / "samples.jsonl", {"step": step, **row})

    def progress(self, step: int, total: int, **shown: float) -> None:
        """What the live display shows; the last state only, never a record."""
        if self.is_main:
            clock = {"step": step, "total": total, "seconds": time.monotonic() - self.started}
            state = {**clock, **{key: _plain(value) for key, value in shown.items()}}
            temporary = self.workdir / "progress.json.tmp"
            temporary.write_text(json.dumps(state))
            temporary.replace(self.workdir / "progress.json")

    def note(self, message: str) -> None:
        """A line for people, on the screen and in console.log (stdout of the worker is console.log)."""
        if self.is_main:
            _append(self.workdir / "notes.jsonl", {"message": message})
            print(message, flush=True)

    def metrics_offset(self) -> dict[str, int]:
        """Sizes of the append-only records, kept in a checkpoint so that resuming can cut what came after it."""
        names = ("metrics.jsonl", "samples.jsonl")
        return {name: path.stat().st_size for name in names if (path := self.workdir / name).exists()}

    def rewind(self, offsets: dict[str, int]) -> None:
        """Cut the append-only records back to a checkpoint (`{}`: to nothing)."""
        if self.is_main:
            for name in ("metrics.jsonl", "samples.jsonl"):
                path = self.workdir / name
                if path.exists():
                    with path.open("r+b") as file:
                        file.truncate(offsets.get(name, 0))


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _plain(value: Any) -> float | int | None:
    """JSON has no NaN: a value that is not finite is written as null."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
