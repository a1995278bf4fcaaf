"""Launchers that go through other tools: as text for several machines, for real on this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.config import LauncherConfig
from pipeline.job import write_job
from pipeline.launch import Stop, free_port
from pipeline.launch_cluster import (
    ClusterLauncher,
    deepspeed_command,
    hostfile_text,
    preview,
    slurm_script,
    torchrun_commands,
)
from pipeline.runner import execute
from pipeline.worker import ROOT
from scripts.watching import descendants
from tests.pipeline.build_plan import command, config, plan_of, planned
from tests.pipeline.test_launch import alive, is_free, listening, pids, wait_until


def test_torchrun_on_one_machine_needs_no_port(tmp_path):
    (command,) = torchrun_commands(LauncherConfig(kind="torchrun"), tmp_path, 4)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert {"--standalone", "--nnodes=1", "--nproc-per-node=4", "--max-restarts=0"} <= set(command)
    assert command[-3:] == ["--module", "pipeline.worker", str(tmp_path)]


def test_torchrun_on_several_machines_meets_at_the_first(tmp_path):
    cfg = LauncherConfig(kind="torchrun", hosts=["localhost", "node2"], options={"port": 1234})
    here, there = torchrun_commands(cfg, tmp_path, 8)
    assert {"--nnodes=2", "--nproc-per-node=4", "--rdzv-endpoint=localhost:1234"} <= set(here)
    assert there[:5] == ["ssh", "-tt", "-o", "BatchMode=yes", "node2"]
    assert there[5].startswith(f"cd {ROOT} && PYTHONHASHSEED=0 exec {sys.executable} -m torch.distributed.run")
    assert "--rdzv-endpoint=localhost:1234" in there[5]
    (alone,) = torchrun_commands(cfg, tmp_path, 1)  # an evaluation
    assert {"--standalone", "--nproc-per-node=1"} <= set(alone)


def test_deepspeed_reads_a_hostfile(tmp_path):
    cfg = LauncherConfig(kind="deepspeed", hosts=["node1", "node2"])
    command = deepspeed_command(cfg, tmp_path, 16)
    assert command[command.index("--hostfile") + 1] == str(tmp_path / "hostfile")
    assert hostfile_text(cfg, 16) == "node1 slots=8\nnode2 slots=8\n"
    assert hostfile_text(cfg, 1) == "node1 slots=1\n"  # an evaluation
    cfg.hostfile = str(tmp_path / "of_the_user")
    (tmp_path / "of_the_user").write_text("node1 slots=8\nnode2 slots=8\n")
    command = deepspeed_command(cfg, tmp_path, 8)
    assert command[command.index("--hostfile") + 1 :][:5] == [cfg.hostfile, "--num_nodes", "2", "--num_gpus", "4"]
    assert "--num_gpus" in deepspeed_command(LauncherConfig(kind="deepspeed"), tmp_path, 2)


def test_the_slurm_script(tmp_path):
    options = {"nodes": 2, "port": None, "partition": "gpu", "account": None, "time": "04:00:00", "gpus_per_task": 1}
    script = slurm_script(LauncherConfig(kind="slurm", options=options), tmp_path, 16, 4)
    assert (
        script
        == f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=16
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --partition=gpu
#SBATCH --time=04:00:00
#SBATCH --gpus-per-task=1
set -euo pipefail
cd {ROOT}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=29400
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
exec srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=4 --kill-on-bad-exit=1 --export=ALL \
{sys.executable} -m pipeline.worker {tmp_path}
"""
    )


def test_outside_an_allocation_slurm_says_so(tmp_path):
    assert execute(plan_of(tmp_path, planned("a")), config(tmp_path, "slurm"), tmp_path / "runs/run", []) == 1
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert summary["error"]["message"] == "srun is not here: run inside an allocation (salloc, sbatch)"
    assert "#SBATCH --ntasks=1" in (tmp_path / "runs/run/console.log").read_text()


def run(root: Path, launcher: str, **fields) -> dict:
    """summary.json of a stage of two ranks."""
    cfg = config(root, launcher)
    cfg.launcher.options = {"port": free_port()}
    execute(plan_of(root, planned("a", ranks=2, **fields)), cfg, root / "runs/run", [])
    return json.loads((root / "runs/run/summary.json").read_text())


@pytest.fixture
def slurm_here(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands: as many processes as --ntasks says, on this machine, inside an allocation."""
    tools = {
        "scontrol": "echo localhost",
        "srun": """for word in "$@"; do
    case $word in --ntasks=*) count=${word#*=} ;; --*) ;; *) break ;; esac
    shift
done
for ((task = 0; task < count; task++)); do
    SLURM_PROCID=$task SLURM_NTASKS=$count SLURM_LOCALID=$task "$@" &
done
for ((task = 0; task < count; task++)); do
    wait -n || { status=$?; kill $(jobs -p); wait; exit $status; }
done""",
    }
    (tmp_path / "bin").mkdir()
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "slurm"])
def test_two_ranks_run(tmp_path, launcher, slurm_here):
    trace = tmp_path / "trace"
    assert run(tmp_path, launcher, trace=str(trace))["stages"][0]["status"] == "ran"
    assert len(set(pids(trace))) == 2


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.slow), "slurm"])
def test_the_rank_that_failed_is_told(tmp_path, launcher, slurm_here, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)  # left over in somebody's shell: every rank would take itself for the only one
    trace = tmp_path / "trace"
    failed = run(tmp_path, launcher, fail="raise", fail_rank=1, fail_at_step=2, trace=str(trace))
    assert failed["error"]["message"] == "rank 1 of 2: ValueError: a planted fault"
    assert not any(alive(pid) for pid in pids(trace))


def test_a_rank_that_is_killed_is_told_and_not_the_one_that_lost_it(tmp_path):
    """Its traceback cannot be had; the survivor's, about a closed connection, would blame the wrong one."""
    began = time.monotonic()
    failed = run(tmp_path, "torchrun", fail="kill", fail_rank=1, fail_at_step=2, steps=1000, step_seconds=0.1)
    assert failed["error"]["message"].startswith("rank 1 of 2: the process was ended without a word; where that was")
    assert time.monotonic() - began < 95  # the survivor would go on for 100 seconds


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_killed_driver_leaves_no_process_and_no_port(tmp_path, launcher):
    """Also where the tool's own processes outlive it, as those of deepspeed do."""
    trace = tmp_path / "trace"
    stages = [{"name": "a", "ranks": 2, "steps": 1000, "step_seconds": 0.1, "trace": str(trace)}]
    process = subprocess.Popen(command(tmp_path, launcher, stages), cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_until(lambda: trace.exists() and "step 2" in trace.read_text(), 60)
    family = descendants(process.pid)
    ports = listening(family)
    process.kill()
    wait_until(lambda: not any(alive(pid) for pid in family), 10)
    process.wait()
    assert ports  # a thread that ends after its process may hold them for a moment
    wait_until(lambda: all(is_free(port) for port in ports), 10)
    assert set(pids(trace)) < set(family)


def test_the_command_is_shown_by_a_dry_run(tmp_path):
    plan = plan_of(tmp_path, planned("narrow"), planned("wide", ranks=4, start=1))
    folder = tmp_path.resolve() / "store/.partial" / f"count-{plan.stages[1].fingerprint}"
    for kind, word in (
        ("slurm", "#SBATCH --ntasks=4"),
        ("torchrun", "--nproc-per-node=4"),
        ("deepspeed", "--num_gpus 4"),
    ):
        text = preview(LauncherConfig(kind=kind), plan)
        assert word in text and f"pipeline.worker {folder}" in text and text.startswith("\nwide would be started by")
    assert preview(LauncherConfig(), plan) == ""
    for stage in plan.stages:
        stage.cached = True
    assert preview(LauncherConfig(kind="slurm"), plan) == ""


def test_a_stop_request_checkpoints_through_a_tool(tmp_path, monkeypatch):
    """The tool is the worker itself here: what is tested is the file that asks, and the outcome."""
    command = [sys.executable, "-m", "pipeline.worker"]
    monkeypatch.setattr(
        "pipeline.launch_cluster.torchrun_commands", lambda cfg, folder, ranks: [[*command, str(folder)]]
    )
    stop, console = Stop(), tmp_path / "console.log"
    trace = tmp_path / "trace"
    stage = planned("a", steps=400, step_seconds=0.05, trace=str(trace))
    write_job(tmp_path, stage, {}, 0.0)

    def ask() -> None:
        while not trace.exists() or "step 2" not in trace.read_text():
            time.sleep(0.05)
        stop.request(signal.SIGTERM)

    threading.Thread(target=ask).start()
    outcome = ClusterLauncher(LauncherConfig(kind="torchrun"), console).run(tmp_path, stage, stop)
    assert outcome.status == "interrupted"
    assert (tmp_path / "checkpoints/count.json").exists()
