"""Launchers that start `python -m pipeline.worker FOLDER` through somebody else: torchrun, deepspeed, srun.

The project folder and `output_dir` must be at the same path on all machines (a shared file system). A stop request
reaches the ranks as a file in the stage's folder; killing the rest when one rank dies is done by each of the tools.
What was tried: torchrun and deepspeed on one machine. The commands for several machines are checked as text.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import LauncherConfig
from pipeline.hosts import local_names, per_machine, used_machines
from pipeline.launch import DISK_FULL_MESSAGE, Outcome, Stop, free_port
from pipeline.plan_types import Plan, PlannedStage
from pipeline.store import partial_path
from pipeline.worker import DRIVER, OUT_OF_MEMORY_REMEDY, ROOT, die_with_parent, process_mark

PORT = 29400  # rendezvous on the first machine; launcher.options.port
KILL_SECONDS = 10.0


def torchrun_commands(cfg: LauncherConfig, folder: Path, ranks: int) -> list[list[str]]:
    """One command a machine; those for other machines go through ssh, whose end hangs up on them."""
    base = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
    worker = ["--module", "pipeline.worker", str(folder)]
    hosts = used_machines(cfg, ranks)
    if hosts[0] in local_names() and len(hosts) == 1:
        return [[*base, "--standalone", "--nnodes=1", f"--nproc-per-node={ranks}", *worker]]
    port = cfg.options.get("port") or PORT
    rendezvous = [
        f"--nnodes={len(hosts)}",
        f"--nproc-per-node={per_machine(ranks, len(hosts))}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={hosts[0]}:{port}",
        f"--rdzv-id={folder.name}",
    ]
    command = [*base, *rendezvous, *worker]
    remote = f"cd {shlex.quote(str(ROOT))} && PYTHONHASHSEED=0 exec {shlex.join(command)}"
    return [command if host in local_names() else ["ssh", "-tt", "-o", "BatchMode=yes", host, remote] for host in hosts]


def deepspeed_command(cfg: LauncherConfig, folder: Path, ranks: int) -> list[str]:
    """With a hostfile (ours, made of launcher.hosts, or the user's), else on this machine."""
    machines = ["--num_gpus", str(ranks)]
    if cfg.hostfile is not None:
        nodes = len(used_machines(cfg, ranks))
        machines = ["--hostfile", cfg.hostfile, "--num_nodes", str(nodes), "--num_gpus", str(ranks // nodes)]
    elif cfg.hosts:
        machines = ["--hostfile", str(folder / "hostfile")]
    alone = free_port() if machines[0] == "--num_gpus" else PORT
    port = ["--master_port", str(cfg.options.get("port") or alone)]
    return [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        *machines,
        *port,
        "--module",
        "pipeline.worker",
        str(folder),
    ]


def hostfile_text(cfg: LauncherConfig, ranks: int) -> str:
    hosts = used_machines(cfg, ranks)
    return "".join(f"{host} slots={per_machine(ranks, len(hosts))}\n" for host in hosts)


def slurm_script(cfg: LauncherConfig, folder: Path, ranks: int, threads: int) -> str:
    """For an allocation that exists (salloc) or for sbatch, which reads the #SBATCH lines: launcher.options."""
    nodes = len(used_machines(cfg, ranks))
    own = ("nodes", "port")
    options = {key: value for key, value in cfg.options.items() if key not in own and value is not None}
    shape = {"nodes": nodes, "ntasks": ranks, "ntasks-per-node": per_machine(ranks, nodes), "cpus-per-task": threads}
    header = [f"#SBATCH --{key.replace('_', '-')}={value}" for key, value in {**shape, **options}.items()]
    arguments = " ".join(f"--{key}={value}" for key, value in shape.items())
    worker = shlex.join([sys.executable, "-m", "pipeline.worker", str(folder)])
    return "\n".join(
        [
            "#!/bin/bash",
            *header,
            "set -euo pipefail",
            f"cd {shlex.quote(str(ROOT))}",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f"export MASTER_PORT={cfg.options.get('port') or PORT}",
            "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE",  # of the shell: srun says which rank is which
            f"exec srun {arguments} --kill-on-bad-exit=1 --export=ALL {worker}",
            "",
        ]
    )


def preview(cfg: LauncherConfig, plan: Plan) -> str:
    """What would be started for the widest stage that has to run, for dry_run=true; "" where there is none."""
    waiting = [stage for stage in plan.stages if stage.wanted and not stage.cached]
    if not waiting or cfg.kind not in ("torchrun", "deepspeed", "slurm"):
        return ""
    stage = max(waiting, key=lambda one: one.ranks)
    folder = partial_path(plan.store, stage.kind, stage.fingerprint).resolve()
    if cfg.kind == "slurm":
        text = slurm_script(cfg, folder, stage.ranks, stage.threads)
    elif cfg.kind == "torchrun":
        text = "\n".join(shlex.join(command) for command in torchrun_commands(cfg, folder, stage.ranks))
    else:
        text = shlex.join(deepspeed_command(cfg, folder, stage.ranks))
    return f"\n{stage.name} would be started by\n\n{text}"


@dataclass
class ClusterLauncher:
    """launcher=torchrun | deepspeed | slurm."""

    cfg: LauncherConfig
    console: Path

    def run(self, folder: Path, planned: PlannedStage, stop: Stop) -> Outcome:
        folder = folder.resolve()
        commands = self._commands(folder, planned)
        needed = "srun" if self.cfg.kind == "slurm" else commands[0][0]
        if shutil.which(needed) is None:
            return Outcome("failed", f"{needed} is not here: run inside an allocation (salloc, sbatch)")
        with self.console.open("a") as log:
            log.write("".join(f"$ {shlex.join(command)}\n" for command in commands))
            log.flush()
            processes = [
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    # The hash seed: the order of a set of texts is the same every time.
                    env=os.environ | {"PYTHONHASHSEED": "0", DRIVER: process_mark()},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,  # noqa: PLW1509 (one system call, no lock is taken)
                )
                for command in commands
            ]
        return self._follow(folder, processes, planned.ranks, stop)

    def _commands(self, folder: Path, planned: PlannedStage) -> list[list[str]]:
        if self.cfg.kind == "torchrun":
            return torchrun_commands(self.cfg, folder, planned.ranks)
        if self.cfg.kind == "deepspeed":
            if self.cfg.hosts and self.cfg.hostfile is None:
                (folder / "hostfile").write_text(hostfile_text(self.cfg, planned.ranks))
            return [deepspeed_command(self.cfg, folder, planned.ranks)]
        script = slurm_script(self.cfg, folder, planned.ranks, planned.threads)
        (folder / "launch.sh").write_text(script)
        with self.console.open("a") as log:
            log.write(script)
        return [["bash", str(folder / "launch.sh")]]

    def _follow(self, folder: Path, processes: list[subprocess.Popen[bytes]], ranks: int, stop: Stop) -> Outcome:
        asked = 0
        while any(process.poll() is None for process in processes):
            failed = any(process.poll() not in (None, 0) for process in processes)
            if stop.times > asked:
                asked = stop.times
                (folder / "stop").touch()
            if failed or asked > 1:
                end(processes)
            time.sleep(0.1)
        worst = next((process.returncode for process in processes if process.returncode), 0)
        return self._outcome(folder, worst, ranks, asked > 0)

    def _outcome(self, folder: Path, status: int, ranks: int, stopped: bool) -> Outcome:
        """The tools fold exit statuses into their own, so the ranks' files tell what happened."""
        if status == 0 and (folder / "result.json").exists():
            return Outcome("done")
        failures = [json.loads(path.read_text()) for path in folder.glob("failure-*.json")]
        if failures:
            first = min(failures, key=lambda failure: (failure["lost_peer"], failure["time"]))
            silent = sorted(set(range(ranks)) - {failure["rank"] for failure in failures})
            if first["lost_peer"] and silent:
                told = f"rank {' or '.join(map(str, silent))} of {ranks}: the process was ended without a word"
                return Outcome("failed", f"{told}; where that was for want of memory: {OUT_OF_MEMORY_REMEDY}")
            return Outcome("failed", f"rank {first['rank']} of {ranks}: {first['message']}", first["traceback"])
        if stopped:
            return Outcome("interrupted")
        if shutil.disk_usage(folder).free < 2**20:
            return Outcome("failed", DISK_FULL_MESSAGE)
        return Outcome("failed", f"{self.cfg.kind} ended with status {status} and no rank said why")


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to what is left, which the tools pass on; SIGKILL where that does not help."""
    alive = [process for process in processes if process.poll() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + KILL_SECONDS
        while any(process.poll() is None for process in alive) and time.monotonic() < deadline:
            time.sleep(0.05)
