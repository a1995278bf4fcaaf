"""Launchers that go through other tools: as text for several machines, for real with torchrun on this one."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from pipeline.config import LauncherConfig
from pipeline.job import write_job
from pipeline.launch import Stop
from pipeline.launch_cluster import (
    ClusterLauncher,
    deepspeed_command,
    hostfile_text,
    slurm_script,
    torchrun_commands,
)
from pipeline.runner import execute
from pipeline.worker import ROOT
from tests.pipeline.build_plan import config, plan_of, planned


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
    options = {"nodes": 2, "partition": "gpu", "time": "04:00:00", "gpus_per_task": 1}
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
exec srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=4 --kill-on-bad-exit=1 --export=ALL \
{sys.executable} -m pipeline.worker {tmp_path}
"""
    )


def test_outside_an_allocation_slurm_says_so(tmp_path):
    assert execute(plan_of(tmp_path, planned("a")), config(tmp_path, "slurm"), tmp_path / "runs/run", []) == 1
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert summary["error"]["message"] == "srun is not here: run inside an allocation (salloc, sbatch)"
    assert "#SBATCH --ntasks=1" in (tmp_path / "runs/run/console.log").read_text()


def test_torchrun_runs_and_tells_which_rank_failed(tmp_path):
    stage = planned("a", ranks=2, fail="raise", fail_rank=1, fail_at_step=2)
    assert execute(plan_of(tmp_path, stage), config(tmp_path, "torchrun"), tmp_path / "runs/run", []) == 1
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert summary["error"]["message"] == "rank 1: ValueError: a planted fault"
    stage.cfg.fail = ""
    assert execute(plan_of(tmp_path, stage), config(tmp_path, "torchrun"), tmp_path / "runs/run", []) == 0
    summary = json.loads((tmp_path / "runs/run/summary.json").read_text())
    assert summary["stages"][0]["status"] == "resumed"


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
