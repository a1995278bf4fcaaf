"""Ranks: how they start, die, take each other down, and never outlive their driver."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.forkserver import ROOT, _found, _servers, lent_to_children
from pipeline.job import INTERRUPTED, write_job
from pipeline.kinds import kinds
from pipeline.launch import LocalLauncher, Stop, free_port, has_model
from pipeline.plan_types import Source
from pipeline.runner import execute
from tests.pipeline.build_plan import command, config, plan_of, planned


def run(root: Path, *stages) -> int:
    return execute(plan_of(root, *stages), config(root, "local"), root / "runs/run", [], preload=("torch",))


def summary(root: Path, name: str = "run") -> dict:
    return json.loads((root / "runs" / name / "summary.json").read_text())


def pids(trace: Path, word: str = "start") -> list[int]:
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [int(line.split()[-1]) for line in lines if line.startswith(word)]


def alive(pid: int) -> bool:
    """Running, and not just waiting to be collected."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def listening(family) -> set[int]:
    """Ports on which these processes wait for connections."""
    sockets = set()
    for descriptor in (one for pid in family for one in Path(f"/proc/{pid}/fd").glob("*")):
        with contextlib.suppress(OSError):  # closed in between
            sockets.add(os.readlink(descriptor))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def driver(root: Path, stages: list[dict], name: str = "run") -> subprocess.Popen:
    return subprocess.Popen(command(root, "local", stages, name), cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_stage_starts_in_a_fraction_of_a_second_and_the_parent_has_no_torch(tmp_path):
    code = """
import sys, time
from pathlib import Path
from tests.pipeline.build_plan import config, plan_of, planned
from pipeline.runner import execute
root = Path(sys.argv[1])
stages = [planned(str(number), start=number) for number in range(6)]
status = execute(plan_of(root, *stages), config(root, "local"), root / "runs/run", [], preload=("torch",))
assert not {"torch", "transformers", "datasets"} & set(sys.modules)
sys.exit(status)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    made = [json.loads(path.read_text())["created"][17:26] for path in tmp_path.glob("store/*/artifact.json")]
    seconds = sorted(float(one) for one in made)
    gaps = sorted((later - earlier) % 60 for earlier, later in itertools.pairwise(seconds))
    assert gaps[2] < 1.0, gaps  # the median, start to seal


def test_two_ranks_form_a_group_and_both_run(tmp_path):
    trace = tmp_path / "trace"
    assert run(tmp_path, planned("a", ranks=2, trace=str(trace))) == 0
    assert len(set(pids(trace))) == 2


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("raise", "rank 1 of 2: ValueError: a planted fault"),
        ("kill", "rank 1 of 2: the process was ended by SIGKILL"),
        ("kill_late", "rank 1 of 2: the process was ended by SIGKILL"),
        ("exit", "rank 1 of 2: exit status 3"),
    ],
)
def test_a_rank_that_dies_takes_the_others_down(tmp_path, fail, message):
    trace = tmp_path / "trace"
    stage = planned(
        "a", ranks=2, trace=str(trace), fail=fail, fail_rank=1, steps=1000, step_seconds=0.1, fail_at_step=3
    )
    began = time.monotonic()
    assert run(tmp_path, stage) == 1
    assert time.monotonic() - began < 15
    assert summary(tmp_path)["error"]["message"].startswith(message)
    assert not any(alive(pid) for pid in pids(trace))
    if fail == "kill":
        assert "for want of memory: lower tokens_per_microbatch" in summary(tmp_path)["error"]["message"]
    if fail == "raise":
        console = (tmp_path / "runs/run/console.log").read_text()
        told = console[console.index("=== a failed") :]
        assert told.index("a planted fault") < 100 and "ValueError: a planted fault" in told


def test_what_a_rank_started_dies_with_it(tmp_path):
    trace = tmp_path / "trace"
    assert run(tmp_path, planned("a", trace=str(trace), fail="child")) == 0
    (child,) = pids(trace, "child")
    wait_until(lambda: not alive(child))


def test_a_killed_driver_leaves_no_process_and_the_next_run_resumes(tmp_path):
    trace = tmp_path / "trace"
    stages = [{"name": "a", "ranks": 2, "steps": 60, "step_seconds": 0.05, "trace": str(trace)}]
    process = driver(tmp_path, stages)
    wait_until(lambda: trace.exists() and "step 5" in trace.read_text(), 60)
    ports = listening(pids(trace))
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in [*pids(trace), *map(int, children)]), 5)
    assert len(children) == 1  # the fork server
    assert ports  # a thread that ends after its process may hold them for a moment
    wait_until(lambda: all(is_free(port) for port in ports), 10)

    again = driver(tmp_path, stages)
    assert again.wait() == 0
    assert [stage["status"] for stage in summary(tmp_path)["stages"]] == ["resumed"]
    rows = [
        json.loads(line)["step"] for line in (tmp_path / "runs/run/stages/a/metrics.jsonl").read_text().splitlines()
    ]
    assert rows == list(range(1, 61))


def test_a_rank_that_hangs_ends_at_the_second_signal(tmp_path):
    trace = tmp_path / "trace"
    process = driver(tmp_path, [{"name": "a", "fail": "hang", "fail_at_step": 2, "trace": str(trace)}])
    wait_until(lambda: trace.exists() and "step 1" in trace.read_text(), 60)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143
    assert not any(alive(pid) for pid in pids(trace))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_request_is_not_lost_while_ranks_are_being_forked(tmp_path, ranks):
    stage = planned("a", ranks=ranks, steps=40, step_seconds=0.05)
    launcher = LocalLauncher(tmp_path / "console.log", ["torch"])
    (tmp_path / "first").mkdir()
    write_job(tmp_path / "first", planned("first"), {}, 0.0)
    assert launcher.run(tmp_path / "first", planned("first"), Stop()).status == "done"  # all is imported
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        write_job(folder, stage, {}, 0.0)
        stop = Stop()
        stop.request(signal.SIGTERM)  # it is passed on right behind the requests to fork
        assert launcher.run(folder, stage, stop).status == "interrupted"
        assert json.loads((folder / "progress.json").read_text())["step"] < 5


def test_a_signal_to_the_whole_group_still_checkpoints(tmp_path):
    """As the terminal's Ctrl-C and many batch systems send it."""
    trace = tmp_path / "trace"
    stages = [{"name": "a", "steps": 100, "step_seconds": 0.05, "trace": str(trace)}]
    process = subprocess.Popen(command(tmp_path, "local", stages), cwd=ROOT, start_new_session=True)
    wait_until(lambda: trace.exists() and "step 3" in trace.read_text(), 60)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert list(tmp_path.glob("store/.partial/*/checkpoints/count.json"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_drivers_of_one_sweep_fork_from_one_server_and_die_apart(tmp_path):
    traces = [tmp_path / "first", tmp_path / "second"]
    stages = [
        {"name": trace.name, "steps": 400, "start": at, "step_seconds": 0.05, "trace": str(trace)}
        for at, trace in enumerate(traces)
    ]
    with lent_to_children(["torch"], tmp_path):
        drivers = [driver(tmp_path, [stage], stage["name"]) for stage in stages]
        wait_until(lambda: all(trace.exists() and "step 2" in trace.read_text() for trace in traces), 60)
        (first,), (second,) = map(pids, traces)
        assert parent(first) == parent(second) == _servers()["torch",].process.pid
        drivers[0].kill()
        wait_until(lambda: not alive(first), 5)
        drivers[1].send_signal(signal.SIGTERM)
        assert drivers[1].wait(timeout=20) == 143  # the other one was not touched: it ends as it was asked
        assert list(tmp_path.glob("store/.partial/*/checkpoints/count.json"))
    drivers[0].wait()


def test_a_driver_of_a_sweep_whose_server_is_gone_starts_its_own(tmp_path):
    with lent_to_children(["torch"], tmp_path):
        _servers()["torch",].process.kill()
        assert driver(tmp_path, [{"name": "a"}]).wait() == 0


def test_a_shared_server_that_cannot_import_says_so_to_every_driver(tmp_path):
    with lent_to_children(["no_such_module"], tmp_path):
        inbox = queue.Queue()
        for server in (_found(), _found()):  # they ask while it is importing
            server.start("a", inbox, {"after": 1})
            assert "no_such_module" in inbox.get(timeout=20)["broken"]


@pytest.fixture
def slow_import(tmp_path, monkeypatch) -> Path:
    """`slow_import` is a module whose import ends when this file is there."""
    (tmp_path / "slow_import.py").write_text("""
import pathlib, time
here = pathlib.Path(__file__).parent
(here / "begun").touch()
while not (here / "go").exists():
    time.sleep(0.02)
if (here / "broken").exists():
    raise ImportError("planted")
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "go"


def test_a_stage_without_a_model_does_not_wait_for_the_heavy_import(tmp_path, slow_import):
    inbox = queue.Queue()
    (tmp_path / "never.py").write_text("while True: pass\n")
    with lent_to_children(["slow_import", "never"], tmp_path):
        write_job(tmp_path, planned("a"), {}, 0.0)
        request = {"folder": str(tmp_path), "console": str(tmp_path / "console.log"), "rank": 0, "world_size": 1}
        for name, after in {"heavy": 2, "light": 1}.items():
            _servers()["slow_import", "never"].start(name, inbox, request | {"after": after, "environment": {}})
        slow_import.touch()
        assert inbox.get(timeout=20)["started"] == "light"
        wait_until((tmp_path / "result.json").exists)


def test_a_rank_that_is_killed_before_it_is_forked_never_starts(tmp_path, slow_import):
    inbox = queue.Queue()
    with lent_to_children(["slow_import"], tmp_path):
        server = _servers()["slow_import",]
        server.start("a", inbox, {"after": 1})
        wait_until(slow_import.with_name("begun").exists)
        server.kill("a", signal.SIGTERM)  # while it imports
        slow_import.touch()
        assert inbox.get(timeout=20) == {"ended": "a", "status": INTERRUPTED}


def test_an_import_that_fails_ends_the_ranks_before_it_and_what_they_started(tmp_path, slow_import):
    inbox, trace = queue.Queue(), tmp_path / "trace"
    slow_import.with_name("broken").touch()
    stage = planned("a", trace=str(trace), fail="child", fail_at_step=1, steps=400, step_seconds=0.05)
    write_job(tmp_path, stage, {}, 0.0)
    request = {"folder": str(tmp_path), "console": str(tmp_path / "console.log"), "rank": 0, "world_size": 1}
    with lent_to_children(["json", "slow_import"], tmp_path):
        _servers()["json", "slow_import"].start("a", inbox, request | {"after": 1, "environment": {}})
        wait_until(lambda: pids(trace, "child") and alive(*pids(trace, "child")))
        slow_import.touch()
        assert inbox.get(timeout=20)["started"] == "a"
        assert "planted" in inbox.get(timeout=20)["broken"]
        wait_until(lambda: not any(alive(pid) for pid in pids(trace) + pids(trace, "child")))


@pytest.mark.parametrize("kind", kinds())
def test_who_waits_for_the_imports_of_models(kind):
    known = kinds()[kind]
    inputs = {
        name: Source(name, port.kind, f"before.{name}", "0", stage="before", output=name)
        for name, port in known.inputs.items()
        if not port.optional
    }
    stage = replace(planned("a"), kind=kind, cfg=known.config(), inputs=inputs)
    assert has_model(stage) == (kind not in ("problems", "preferences", "mode_data", "curate"))


def test_a_killed_call_leaves_neither_a_folder_nor_processes_behind(tmp_path):
    code = """
import subprocess, sys, time
from pathlib import Path
from pipeline.forkserver import lent_to_children
with lent_to_children(["json"], Path(sys.argv[1])):
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
    time.sleep(60)
"""
    folder = tmp_path / "call"
    folder.mkdir()
    call = subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    child = int(call.stdout.readline())
    call.kill()
    call.wait()
    wait_until(lambda: not folder.exists() and not alive(child))


def test_two_drivers_on_one_store_compute_a_stage_once(tmp_path):
    trace = tmp_path / "trace"
    stages = [{"name": "a", "steps": 20, "step_seconds": 0.1, "trace": str(trace)}, {"name": "b", "start": 5}]
    drivers = [driver(tmp_path, stages, name) for name in ("first", "second")]
    outputs = [process.communicate()[0] for process in drivers]
    assert [process.returncode for process in drivers] == [0, 0]
    assert len(pids(trace)) == 1
    assert sorted(summary(tmp_path, name)["stages"][0]["status"] for name in ("first", "second")) == ["cached", "ran"]
    assert sum("is computing it; waiting" in output for output in outputs) >= 1


def test_a_library_that_cannot_be_loaded_is_told(tmp_path):
    plan = plan_of(tmp_path, planned("a"))
    assert execute(plan, config(tmp_path, "local"), tmp_path / "runs/run", [], preload=("no_such_library",)) == 1
    assert summary(tmp_path)["error"]["message"] == "ModuleNotFoundError: No module named 'no_such_library'"


def test_a_free_port_can_be_bound():
    assert free_port() > 1023
