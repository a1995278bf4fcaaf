"""The command line: Hydra composes once -> typed config -> plan -> execute. `python run.py --help` tells the rest.

Unlike a usual Hydra app, the exit status is this project's (0 done, 1 failed, 2 refused), a refusal is one line a
fault, and a failing job never ends a sweep: jobs record their status and return.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline import compose, messages, sweep
from pipeline.plan import make_plan
from pipeline.table import plan_table

STATUSES = "POSTTRAIN_STATUSES"  # file to which every job of this call adds its status, from whatever process
INTERRUPTED = (130, 143)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def job(config: DictConfig) -> None:
    """One run, or one job of a sweep."""
    node = HydraConfig.get()
    overrides = list(node.overrides.task)
    in_sweep = node.mode == RunMode.MULTIRUN and not config.dry_run
    folder = Path(node.runtime.output_dir) if in_sweep else None
    if folder:
        sweep.record(Path(node.sweep.dir), folder.name, overrides, "running")
    status, message = run_one(config, dict(node.runtime.choices), overrides, folder)
    if folder:
        sweep.record(Path(node.sweep.dir), folder.name, overrides, sweep.name_of(status), message)
    with Path(os.environ[STATUSES]).open("a") as file:
        file.write(f"{status}\n")
    if status in INTERRUPTED:
        raise KeyboardInterrupt  # the one thing that ends a sweep


def run_one(config: DictConfig, choices: dict[str, str], overrides: list[str], folder: Path | None) -> tuple[int, str]:
    """Plan and execute. Returns the exit status, and a message where nothing was run."""
    try:
        cfg = compose.typed(config, choices, overrides)
        plan = make_plan(cfg, overrides)
    except messages.Refused as refusal:
        print(refusal, file=sys.stderr)
        return sweep.REFUSED, str(refusal)
    if cfg.dry_run:
        print(plan_table(plan))
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


def main() -> int:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting in its own way
    scratch = Path(tempfile.mkdtemp(prefix="run_"))
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
    return sweep.exit_status(statuses) if len(statuses) != 1 else statuses[0]


def _statuses(scratch: Path) -> list[int]:
    file = scratch / "statuses"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())
