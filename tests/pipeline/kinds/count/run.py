"""Counts to `steps` and fails where and how its config says; the file `trace` is its witness."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import torch.distributed

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from pipeline.tracking import Context, Metrics
from tests.pipeline.kinds.count.config import CountConfig


def run(cfg: CountConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Write the count, added to that of the input, into the port `total`; every step leaves a checkpoint."""
    trace(cfg, f"start {context.rank} {os.getpid()}")
    before = 0.0
    if "before" in inputs:
        before = json.loads((inputs["before"].path / "total.json").read_text())["count"]
    checkpoint = context.checkpoints / "count.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"step": 0, "offsets": {}}
    context.rewind(state["offsets"])
    if state["step"]:
        context.note(f"resumed from step {state['step']}")
    for step in range(state["step"] + 1, cfg.steps + 1):
        if context.rank == cfg.fail_rank and step == cfg.fail_at_step:
            fail(cfg)
        time.sleep(cfg.step_seconds)
        trace(cfg, f"step {step} {context.rank}")
        if context.world_size > 1:
            torch.distributed.barrier()  # where the others wait for a rank that has died
        context.log(step, {"count/value": cfg.start + step})
        context.progress(step, cfg.steps, count=step)
        if context.is_main:
            context.checkpoints.mkdir(exist_ok=True)
            new = checkpoint.with_suffix(".new")
            new.write_text(json.dumps({"step": step, "offsets": context.metrics_offset()}))
            new.replace(checkpoint)
        if context.stop.is_set():
            raise Interrupted(f"stopped after step {step}")
    count = before + cfg.start + cfg.steps
    if cfg.fail != "nothing" and context.is_main:
        (context.output("total") / "total.json").write_text(json.dumps({"count": count}))
        context.declare("total", rows=cfg.steps)
    return {"count/value": count, "reasoning/pass@1": cfg.value}


def trace(cfg: CountConfig, line: str) -> None:
    if cfg.trace:
        with Path(cfg.trace).open("a") as file:
            file.write(line + "\n")


def fail(cfg: CountConfig) -> None:
    if cfg.once and Path(cfg.trace).read_text().count("start") > 1:
        return
    if cfg.fail == "raise":
        raise ValueError("a planted fault")
    if cfg.fail == "stage_failed":
        raise StageFailed("it trained zero steps")
    if cfg.fail == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if cfg.fail == "kill_late":  # the others notice before it is dead
        torch.distributed.destroy_process_group()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if cfg.fail == "exit":
        os._exit(3)
    if cfg.fail == "disk_full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if cfg.fail == "child":  # something that the rank started and that would outlive it
        trace(cfg, f"child {subprocess.Popen(['sleep', '600']).pid}")
    if cfg.fail == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        time.sleep(600)
