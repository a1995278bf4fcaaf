"""The command line: Hydra composes once -> typed config -> plan -> execute. `python run.py --help` tells the rest.

Unlike a usual Hydra app, the exit status is this project's (0 done, 1 failed, 2 refused), a refusal is one line a
fault, and a failing job never ends a sweep: jobs record their status and return. A plain run does not pass through
`hydra.main`, which composes twice to find out whether it is a sweep; sweeps and Hydra's own flags do.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline import axes, compose, messages, sweep
from pipeline.config import RunConfig
from pipeline.launch_cluster import preview
from pipeline.plan import make_plan
from pipeline.table import plan_table

STATUSES = "POSTTRAIN_STATUSES"  # file to which every job of this call adds its status, from whatever process
COMMAND = "POSTTRAIN_COMMAND"  # what was typed; a job of a sweep knows only its own overrides
INTERRUPTED = (130, 143)


def run_one(composed: Callable[[], RunConfig], overrides: list[str], folder: Path | None = None) -> tuple[int, str]:
    """Plan and execute. Returns the exit status, and a message where nothing was run. `folder` is a sweep's job's."""
    try:
        cfg = composed()
        plan = make_plan(cfg, overrides)
    except messages.Refused as refusal:
        print(refusal, file=sys.stderr)
        return sweep.REFUSED, str(refusal)
    if cfg.dry_run:
        print(plan_table(plan) + preview(cfg.launcher, plan))
        return sweep.DONE, ""
    from pipeline.runner import execute

    run_dir = folder or Path(cfg.output_dir) / "runs" / cfg.name
    try:
        return execute(plan, cfg, run_dir, overrides, group=folder.parent.name if folder else None), ""
    except Exception as error:
        if folder is None:
            raise
        traceback.print_exc()  # a fault of the driver itself; the other jobs of the sweep go on
        return sweep.FAILED, str(error)


@hydra.main(version_base="1.3", config_path=str(compose.CONF), config_name="config")
def job(config: DictConfig) -> None:
    """One job of a sweep (or a run with Hydra's own flags)."""
    node = HydraConfig.get()
    overrides, choices = list(node.overrides.task), dict(node.runtime.choices)
    folder = Path(node.runtime.output_dir) if node.mode == RunMode.MULTIRUN and not config.dry_run else None
    record = functools.partial(sweep.record, Path(node.sweep.dir), command=os.environ[COMMAND])
    if folder:
        record(folder.name, overrides, "running")
    status, message = run_one(lambda: compose.typed(config, choices, overrides), overrides, folder)
    if folder:
        record(folder.name, overrides, sweep.name_of(status), message)
    with Path(os.environ[STATUSES]).open("a") as file:
        file.write(f"{status}\n")
    if status in INTERRUPTED:
        raise KeyboardInterrupt  # the one thing that ends a sweep


def main() -> int:
    arguments = sys.argv[1:]
    if any(argument.startswith("-") or argument.lstrip("+~").startswith("hydra") for argument in arguments):
        return through_hydra()
    try:
        return run_one(lambda: compose.compose(arguments), arguments)[0]
    except KeyboardInterrupt:
        return INTERRUPTED[0]  # while planning; the runner has its own way of stopping


def through_hydra() -> int:
    """Let Hydra run its jobs, in whatever processes; the exit status comes from what they recorded."""
    if any(argument in ("-m", "--multirun") for argument in sys.argv[1:]):
        try:
            notes = axes.check_axes(sys.argv[1:])
        except messages.Refused as refusal:
            print(refusal, file=sys.stderr)
            return sweep.REFUSED
        print("".join(f"{note}\n" for note in notes), end="", flush=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting in its own way
    scratch = Path(tempfile.mkdtemp(prefix="run_"))
    os.environ[COMMAND] = shlex.join(["python", *sys.argv])
    os.environ[STATUSES] = str(scratch / "statuses")
    try:
        job()
    except (HydraException, OmegaConfBaseException) as error:
        print(messages.line(messages.reword(error, sys.argv[1:])), file=sys.stderr)
        return sweep.REFUSED
    except KeyboardInterrupt:
        return next((status for status in _statuses(scratch) if status in INTERRUPTED), INTERRUPTED[0])
    finally:
        statuses = _statuses(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(compose.dry_run_folder(), ignore_errors=True)
    return statuses[0] if len(statuses) == 1 else sweep.exit_status(statuses)


def _statuses(scratch: Path) -> list[int]:
    file = scratch / "statuses"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())
