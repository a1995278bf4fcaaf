"""Jobs of a sweep in processes of their own: killed ones are launched again, asked ones write checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from pipeline import side_by_side, sweep
from pipeline.worker import ROOT

NAMES = ("G=4", "G=8", "G=16")
JOBS = {name: [name] for name in NAMES}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a sweep whose jobs wait, in a call of this process."""
    monkeypatch.setenv(side_by_side.CALL, f"{os.getpid()} {tmp_path}")
    for name, overrides in JOBS.items():
        sweep.record(tmp_path / "sweep", name, overrides, "waiting")
    return tmp_path / "sweep"


def launcher(folder: Path, deadly: str, deaths: int):
    """Runs jobs in their order; the process of `deadly` is killed so many times."""
    launched = []

    def launch(jobs: list[list[str]]) -> list[str]:
        launched.append([job[0] for job in jobs])
        for job in jobs:
            sweep.record(folder, job[0], job, "running")
            if job[0] == deadly and len(launched) <= deaths:
                raise BrokenExecutor
            sweep.record(folder, job[0], job, "done")
        return [job[0] for job in jobs]

    return launch, launched


def test_jobs_lost_with_a_killed_process_are_launched_again(folder: Path) -> None:
    launch, launched = launcher(folder, "G=8", deaths=1)
    assert side_by_side.launch_all(launch, JOBS, folder) == ["G=8", "G=16"]
    assert launched == [["G=4", "G=8", "G=16"], ["G=8", "G=16"]]
    assert set(sweep.statuses(folder).values()) == {"done"}


def test_a_job_that_is_killed_every_time_fails_and_the_others_go_on(folder: Path) -> None:
    launch, launched = launcher(folder, "G=8", deaths=9)
    assert side_by_side.launch_all(launch, JOBS, folder) == ["G=16"]
    assert launched == [["G=4", "G=8", "G=16"], ["G=8", "G=16"], ["G=16"]]
    assert sweep.statuses(folder) == {"G=4": "done", "G=8": "failed", "G=16": "done"}
    ledger = json.loads((folder / "sweep.json").read_text())
    assert "killed, 2 times" in ledger["jobs"]["G=8"]["message"]


def test_nothing_is_launched_again_once_a_stop_was_asked_for(folder: Path) -> None:
    launch, launched = launcher(folder, "G=4", deaths=1)
    side_by_side.stop()
    with pytest.raises(KeyboardInterrupt):
        side_by_side.launch_all(launch, JOBS, folder)
    assert len(launched) == 1


@pytest.mark.slow
def test_a_sweep_of_processes_that_is_killed_at_their_start_leaves_none(tmp_path: Path) -> None:
    words = ("until=base", "stages.base.steps=100000", "seed=11,12", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    command = [sys.executable, "run.py", "-m", "experiment=smoke", *words, f"output_dir={tmp_path}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def started() -> list[int]:
        """Of this call: joblib's processes, its tracker and the fork server have the call in their environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{side_by_side.CALL}={process.pid} ".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    deadline = time.monotonic() + 60
    while len(started()) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    while started() or list(Path("/dev/shm").glob(f"*loky-{process.pid}-*")):
        assert time.monotonic() < deadline + 20
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_sweep_of_processes_leaves_checkpoints_and_nothing_that_runs(
    number: int, status: int, tmp_path: Path
) -> None:
    base = ("until=base", "stages.base.steps=100000", "stages.base.save_every_steps=100000", "seed=11,12,13")
    joblib = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"output_dir={tmp_path}")
    command = [sys.executable, "run.py", "-m", "experiment=smoke", *base, *joblib]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("store/.partial/*/metrics.jsonl"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "out").read_text()[-2000:]
        time.sleep(0.2)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)  # as a terminal does
    assert process.wait(timeout=60) == status
    assert len(list(tmp_path.glob("store/.partial/*/checkpoints/step-*"))) == 2
    (ledger,) = tmp_path.glob("sweeps/*/sweep.json")
    states = [job["status"] for job in json.loads(ledger.read_text())["jobs"].values()]
    assert sorted(states) == ["interrupted", "interrupted", "waiting"]
    while (
        subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).returncode == 0
    ):  # joblib's helpers end
        assert time.monotonic() < deadline + 30
        time.sleep(0.2)
