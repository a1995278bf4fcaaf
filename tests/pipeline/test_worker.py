"""One rank: its config comes back as it was, its end is told, and it listens."""

from __future__ import annotations

import enum
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline import worker
from pipeline.artifacts import Artifact, StageFailed
from pipeline.job import INTERRUPTED, plain, read_job, rebuild, write_job
from pipeline.store import open_partial
from pipeline.worker import Place, place_from_environment, run_rank
from stages.rl.config import RLConfig
from tests.pipeline.build_plan import planned


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Inner:
    rate: float = 1.0
    names: list[str] = field(default_factory=list)


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    many: dict[str, Inner] = field(default_factory=dict)
    colour: Colour = Colour.RED
    path: Path | None = None
    shares: dict[str, float] = field(default_factory=lambda: {"a": 1.0})


def job(root: Path, inputs: dict[str, Artifact] | None = None, **fields) -> Path:
    folder, _ = open_partial(root, "count", "abc", {}, ["total"])
    write_job(folder, planned("a", **fields), inputs or {}, seconds_before=2.0)
    return folder


def test_a_config_survives_the_way_to_the_rank():
    """A dict is replaced, not merged into the default of its class; whole numbers stay floats."""
    outer = Outer(Inner(2, ["x"]), {"one": Inner(1e-5)}, Colour.RED, Path("/tmp"), {"b": 1})
    back = rebuild(Outer, json.loads(json.dumps(plain(outer))))
    assert back == outer
    assert isinstance(back.inner.rate, float) and isinstance(back.colour, Colour)
    assert rebuild(Outer, plain(Outer())) == Outer()


def test_the_config_of_a_real_kind_survives(tmp_path):
    cfg = RLConfig(seed=3, G=4)
    cfg.algorithm.beta, cfg.algorithm.epsilon = 1e-3, 0.2
    cfg.suites = {"general": 1.0}
    stage = planned("a")
    stage.cfg = cfg
    write_job(tmp_path, stage, {}, 0.0)
    again, back, _ = read_job(tmp_path)
    assert (back, again.package) == (cfg, "stages.rl")


def test_inputs_survive_and_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    artifact = Artifact("before", "metrics", Path("here/total"), {"rows": 3}, "f", "d")
    _, _, inputs = read_job(job(tmp_path, {"before": artifact}))
    assert inputs["before"].path == tmp_path / "here/total"
    assert inputs["before"].facts == {"rows": 3}


def test_a_rank_writes_its_result_and_the_time_of_earlier_attempts(tmp_path):
    folder = job(tmp_path)
    assert run_rank(folder, Place(), threading.Event()) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["metrics"]["count/value"] == 3
    assert result["facts"] == {"total": {"rows": 3}}
    assert 2.0 < result["seconds"] < 3.0


def test_a_stop_request_is_an_exit_status_of_its_own(tmp_path):
    stop = threading.Event()
    stop.set()
    folder = job(tmp_path)
    assert run_rank(folder, Place(), stop) == INTERRUPTED
    assert not (folder / "result.json").exists()


def test_a_metric_that_is_not_finite_is_null(tmp_path):
    folder = job(tmp_path, value=float("nan"))
    run_rank(folder, Place(), threading.Event())
    assert json.loads((folder / "result.json").read_text())["metrics"]["reasoning/pass@1"] is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StageFailed("zero supervised tokens"), "zero supervised tokens"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError(), "KeyError: no message"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "out of memory: lower tokens_per_microbatch"),
        (MemoryError(), "out of memory: lower tokens_per_microbatch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory: lower tokens_per"),
        (StageFailed("out of memory with tokens_per_microbatch=9: halve it"), "out of memory with tokens_per_micro"),
    ],
)
def test_an_error_is_one_line_with_its_remedy(tmp_path, error, line):
    told = worker.explain(error, tmp_path)
    assert told.startswith(line)
    assert "\n" not in told


def test_a_file_named_stop_reaches_ranks_of_other_machines(tmp_path):
    stop = threading.Event()
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        worker.listen_for_stop(tmp_path, stop)
        (tmp_path / "stop").touch()
        began = time.monotonic()
        assert stop.wait(5)
        assert time.monotonic() - began < 3
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers):
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place(0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(5, 8, 1)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, Place(3, 4, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(5, 8, 1)),
    ],
)
def test_a_rank_finds_its_place(monkeypatch, environment, place):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert place_from_environment() == place


WATCHES = [sys.executable, "-c", "from pipeline.worker import die_with_driver; die_with_driver(); print('alive')"]


def watched(mark: str, *before: str) -> int:
    """Exit status of a process that watches the driver `mark`; `before`: the command in front of it."""
    return subprocess.run([*before, *WATCHES], env=os.environ | {worker.DRIVER: mark}, cwd=worker.ROOT).returncode


def test_a_rank_dies_with_its_driver_and_not_with_a_namesake():
    """A container has process numbers of its own, where the driver's is nobody's or somebody else's."""
    pid, start, space = worker.process_mark().split(" ")
    assert watched(f"{pid} {start} {space}") == 0
    assert watched(f"{pid} {int(start) + 1} {space}") == -signal.SIGKILL  # the number went to another process
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert watched(f"{gone.pid} {start} {space}") == -signal.SIGKILL
    assert watched(f"{gone.pid} {start} another-boot/pid:[1]") == watched("") == 0


def test_a_rank_in_a_container_does_not_take_its_driver_for_dead():
    """Also where the container has the driver's host name."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no right to make a pid namespace")
    assert watched(worker.process_mark(), *alone) == 0
