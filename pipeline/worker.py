"""The entry of one rank: from the resolved job in a partial folder to the stage's `run`.

`launcher=local` forks it from a server with everything imported; torchrun, deepspeed and srun start it as
`python -m pipeline.worker FOLDER`. Ranks never compose Hydra, and nothing here imports torch: what must be set up in
torch is done by stages.parts.process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import math
import os
import select
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.artifacts import Interrupted, StageFailed
from pipeline.job import DISK_FULL, INTERRUPTED, Job, read_job
from pipeline.store import rank_at_work, write_json
from pipeline.tracking import Context

ROOT = Path(__file__).resolve().parent.parent
OUT_OF_MEMORY_REMEDY = (
    "lower tokens_per_microbatch where the stage trains (the result stays the same), max_response_tokens where it"
    " samples, or take engine=zero3 on more ranks"
)
DRIVER = "POSTTRAIN_DRIVER"  # environment: `process_mark` of the driver, where others stand between it and a rank
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Place:
    """Which rank this process is. MASTER_ADDR and MASTER_PORT stand in the environment where there are several."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


def run_rank(folder: Path, place: Place, stop: threading.Event) -> int:
    """Run one rank of the job in `folder`; returns its exit status (0, 1, INTERRUPTED or DISK_FULL)."""
    try:
        with rank_at_work(folder):
            job, cfg, inputs = read_job(folder)
            set_environment(job, place)
            context = Context(
                stage=job.stage,
                workdir=folder,
                seed=job.seed,
                rank=place.rank,
                world_size=place.world_size,
                local_rank=place.local_rank,
                threads=job.threads,
                stop=stop,
            )
            process: Any = importlib.import_module("stages.parts.process")
            process.prepare(context)
            began = time.time()
            outside: Any = importlib.import_module("stages.parts.outside")
            inputs = outside.at_hand(inputs)
            metrics = importlib.import_module(f"{job.package}.run").run(cfg, inputs, context)
            if context.is_main:
                if not (folder / "metrics.jsonl").exists():  # a stage without steps; every result has the file
                    context.log(0, metrics or {})
                write_result(folder, job, context, metrics or {}, began)
            process.finish(context)
            return 0
    except Interrupted as reason:
        print(f"{reason}", flush=True)
        return INTERRUPTED
    except Exception as error:
        return report_failure(folder, place, error)


def set_environment(job: Job, place: Place) -> None:
    os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(place.world_size))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # for libraries still to be loaded
        os.environ[name] = str(job.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # or cuBLAS is not deterministic
    os.environ["TQDM_DISABLE"] = "1"  # bars of libraries; ours is the display


def write_result(folder: Path, job: Job, context: Context, metrics: dict[str, Any], began: float) -> None:
    ended = time.time()
    result = {
        "metrics": {key: float(value) if math.isfinite(value) else None for key, value in metrics.items()},
        "facts": context.facts,
        "began": began,
        "ended": ended,
        "seconds": job.seconds_before + ended - began,
    }
    write_json(folder / "result.json", result)


def report_failure(folder: Path, place: Place, error: Exception) -> int:
    """failure-<rank>.json for the driver, which tells people and puts the traceback into console.log."""
    text = "".join(traceback.format_exception(error))
    failure = {
        "rank": place.rank,
        "type": type(error).__name__,
        "message": explain(error, folder),
        "traceback": text,
        "expected": isinstance(error, StageFailed),
        "lost_peer": is_lost_peer(error),
        "time": time.time(),
    }
    try:
        write_json(folder / f"failure-{place.rank}.json", failure)
    except OSError:
        return DISK_FULL
    return DISK_FULL if is_disk_full(error) else 1


def is_disk_full(error: BaseException) -> bool:
    """Also where a library hides the errno in its text (safetensors does)."""
    code = getattr(error, "errno", None)
    return code in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(error)


def is_lost_peer(error: BaseException) -> bool:
    """Whether this rank only noticed that another one is gone (what gloo, NCCL and the rendezvous say then)."""
    signs = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")
    return any(sign in str(error) for sign in signs)


def is_out_of_memory(error: BaseException) -> bool:
    """Also torch's own errors on a CPU (its allocator says "can't allocate memory"), without knowing torch."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


def explain(error: Exception, folder: Path) -> str:
    """One line for the screen, with the remedy where there is one."""
    if is_disk_full(error):
        free = shutil.disk_usage(folder).free // 2**20
        return f"the disk is full ({free} MiB left for {folder.parent.parent}): free some space and run again"
    if not isinstance(error, StageFailed) and is_out_of_memory(error):
        first = str(error).splitlines()[0] if str(error) else ""
        return f"out of memory: {OUT_OF_MEMORY_REMEDY}. {first}".strip()
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else "no message"
    return line if isinstance(error, StageFailed) else f"{type(error).__name__}: {line}"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, whatever it is doing then."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def process_mark() -> str:
    """This process, and where its number means it."""
    return f"{os.getpid()} {start_of(os.getpid())} {process_space()}"


def process_space() -> str:
    """Processes of one space see each other by number: one boot of one kernel, one pid namespace. A host name tells
    neither (containers have namespaces of their own, and may share a name). "" where the kernel does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(pid: int) -> str:
    """When the process started, in clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def die_with_driver() -> None:
    """As `die_with_parent`, for a rank whose parent is a tool that may outlive the driver (deepspeed's launcher does).
    A driver whose process cannot be seen from here (another machine, another container) cannot be watched; its ssh or
    srun hangs up on the rank."""
    pid, start, space = [*os.environ.get(DRIVER, "").split(" "), "", ""][:3]
    if not space or space != process_space():
        return
    try:
        driver = os.pidfd_open(int(pid))
        running = start_of(int(pid)) == start  # else the number went to another process
    except OSError:
        running = False
    if not running:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        select.select([driver], [], [])  # readable once it has ended
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def listen_for_stop(folder: Path, stop: threading.Event) -> None:
    """SIGTERM, SIGINT and (where ranks are on other machines) the file `stop` ask for a checkpoint and an end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def watch() -> None:
        while not stop.wait(1.0):
            if (folder / "stop").exists():
                stop.set()

    threading.Thread(target=watch, daemon=True).start()


def place_from_environment() -> Place:
    """As torchrun and deepspeed set it, or as srun does."""
    environment = os.environ
    if "SLURM_PROCID" in environment and "RANK" not in environment:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    else:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    rank, world_size, local_rank = (int(environment.get(name, default)) for name, default in zip(names, "010"))
    return Place(rank, world_size, local_rank)


def main() -> int:
    folder = Path(sys.argv[-1])  # deepspeed puts --local_rank before it
    die_with_parent()
    die_with_driver()
    stop = threading.Event()
    listen_for_stop(folder, stop)
    status = run_rank(folder, place_from_environment(), stop)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    status = main()
    os._exit(status)  # no atexit handler of a library may hang or change the status of a finished rank
