"""The command line: Hydra composes once -> typed config -> plan -> execute. `python run.py --help` tells the rest.

Unlike a usual Hydra app, the exit status is this project's (0 done, 1 failed, 2 refused), a refusal is one line a
fault, and a failing job never ends a sweep: jobs record their status and return. Neither a plain run nor a sweep passes
through `hydra.main`, which would compose twice, and every job of a sweep once more; Hydra's own flags, launchers and
sweepers do.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline import compose, messages, side_by_side, sweep
from pipeline.artifacts import Fault
from pipeline.begin_sweep import NothingToRun, begin_sweep
from pipeline.config import RunConfig
from pipeline.flags import MULTIRUN, asks_hydra, clashing_flags, is_dry, unknown_flag, version
from pipeline.launch_cluster import preview
from pipeline.manual import page
from pipeline.overrides import unreadable
from pipeline.plan import make_plan
from pipeline.reword import reword
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
        print(plan_table(plan, cfg.costs) + preview(cfg.launcher, plan))
        return sweep.DONE, ""
    print("".join(f"{warning}\n" for warning in plan.warnings), end="", flush=True)
    from pipeline.runner import execute

    run_dir = folder or Path(cfg.output_dir) / "runs" / cfg.name
    group, stop = (folder.parent.name, side_by_side.ASKED) if folder else (None, None)
    status = execute(plan, cfg, run_dir, overrides, group=group, stop=stop)
    return status, failure_of(run_dir) if status == sweep.FAILED else ""


def run_job(composed: Callable[[], RunConfig], overrides: list[str], folder: Path | None, sweep_folder: Path) -> int:
    """Run and record the status; `folder` is None where this is no job of a sweep, or only planned.

    Raises KeyboardInterrupt, the one thing that ends a sweep, where a job of this process was asked to stop.
    """
    record = functools.partial(sweep.record, sweep_folder, command=os.environ[COMMAND])
    if folder:
        record(folder.name, overrides, "running")
    try:
        status, message = run_one(composed, overrides, folder)
    except Exception as error:
        if folder is None:
            raise
        traceback.print_exc()  # a fault of the driver itself; the other jobs of the sweep go on
        status, message = sweep.FAILED, str(error)
    if folder:
        record(folder.name, overrides, sweep.name_of(status), message)
    with Path(os.environ[STATUSES]).open("a") as file:
        file.write(f"{status}\n")
    if status in INTERRUPTED or side_by_side.ASKED.times:  # it may have come when the job was all but done
        side_by_side.stop()
        if not side_by_side.is_apart():  # joblib would kill the other jobs before they have written their checkpoints
            raise KeyboardInterrupt
    return status


@hydra.main(version_base="1.3", config_path=str(compose.CONF), config_name="config")
def job(config: DictConfig) -> float | None:
    """A job that Hydra composed and launched. Returns its objective, where it has one."""
    if side_by_side.is_apart():
        side_by_side.begin_job()
        if side_by_side.is_stopped():
            return None
    node = HydraConfig.get()
    overrides, choices = list(node.overrides.task), dict(node.runtime.choices)
    folder = Path(node.runtime.output_dir) if node.mode == RunMode.MULTIRUN and not config.dry_run else None
    status = run_job(lambda: compose.typed(config, choices, overrides), overrides, folder, Path(node.sweep.dir))
    return objective(folder, config.objective) if folder and status == sweep.DONE else None


def failure_of(folder: Path) -> str:
    """Why a run failed, as its summary says."""
    path = folder / "summary.json"  # not there where the disk was full
    error = (json.loads(path.read_text()) if path.exists() else {}).get("error") or {}
    return ": ".join(filter(None, (error.get("stage"), error.get("message"))))


def objective(folder: Path, wanted: DictConfig) -> float | None:
    """The metric that the run reached, of the stage's evaluation or of the stage itself; None where a grid has none."""
    if wanted.stage is None:
        return None
    stages = {stage["name"]: stage["metrics"] for stage in json.loads((folder / "summary.json").read_text())["stages"]}
    metrics = {**stages.get(wanted.stage, {}), **stages.get(f"{wanted.stage}.eval", {})}
    if metrics.get(wanted.metric) is None:
        remedy = messages.suggest(wanted.metric, [name for name, value in metrics.items() if value is not None])
        fault = Fault("objective.metric", f"{wanted.stage} has no {wanted.metric}", remedy)
        print(messages.line(fault), file=sys.stderr)
    return metrics.get(wanted.metric)


def main() -> int:
    arguments = sys.argv[1:] = sorted(sys.argv[1:], key=lambda item: item not in MULTIRUN)  # Hydra wants it in front
    if arguments and arguments[0] in ("--shell-completion", "-sc"):
        from pipeline.completion import answer

        return answer(arguments[1:])
    if {"-h", "--help"} & set(arguments):
        print(page())
        return sweep.DONE
    if "--version" in arguments:
        print(version())
        return sweep.DONE
    faults = [fault for one in arguments if one.startswith("-") and (fault := unknown_flag(one))]
    if fault := clashing_flags(arguments):
        faults.append(fault)
    if faults:
        print(messages.Refused(faults), file=sys.stderr)
        return sweep.REFUSED
    if set(arguments) & set(MULTIRUN) or asks_hydra(arguments):
        return run_jobs(arguments)
    try:
        return run_one(lambda: compose.compose(arguments), arguments)[0]
    except KeyboardInterrupt:
        return INTERRUPTED[0]  # while planning; the runner has its own way of stopping


def run_jobs(arguments: list[str]) -> int:
    """One after the other, as planned, or as Hydra runs them; the exit status comes from what they recorded."""
    if faults := [fault for item in arguments if not item.startswith("-") and (fault := unreadable(item))]:
        print(messages.Refused(faults), file=sys.stderr)
        return sweep.REFUSED
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing and exiting in its own way
    scratch = Path(tempfile.mkdtemp(prefix="run_"))
    os.environ[COMMAND] = shlex.join(["python", *sys.argv])
    os.environ[STATUSES] = str(scratch / "statuses")
    os.environ[side_by_side.CALL] = f"{os.getpid()} {scratch}"
    asked = side_by_side.ASKED
    prepared = None
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(side_by_side.stop_on_signals(waits="hydra/launcher=joblib" in arguments))
            if set(arguments) & set(MULTIRUN):
                stack.enter_context(fork_server(arguments, scratch))
                prepared = begin_sweep(arguments, os.environ[COMMAND])
                sys.argv += prepared.for_hydra
            if prepared and prepared.is_plain:
                for name, one in prepared.runnable.items():
                    assert one.composed is not None
                    run_job(one.composed, one.overrides, prepared.folder / name, prepared.folder)
            else:
                job()
    except NothingToRun as planned:
        return planned.status
    except messages.Refused as refusal:
        print(refusal, file=sys.stderr)
        return sweep.REFUSED
    except (HydraException, OmegaConfBaseException) as error:
        print(messages.line(reword(error, arguments)), file=sys.stderr)
        return sweep.REFUSED
    except KeyboardInterrupt:
        return interrupted(_statuses(scratch), asked.number or signal.SIGINT)
    except ValueError as error:
        if "No trials are completed" not in str(error):
            raise
        print("no trial has reached a value of objective.metric: nothing to choose from", file=sys.stderr)
        return sweep.FAILED
    except BrokenExecutor:
        print("a job's process was killed: the same command goes on from there", file=sys.stderr)
        return sweep.FAILED
    finally:
        statuses = _statuses(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
        if prepared:
            from pipeline.report.sweep import write_sweep_report  # numpy: a tenth of a second that a dry run spares

            print(f"report: {write_sweep_report(prepared.folder)}")
    if asked.number:
        return interrupted(statuses, asked.number)
    statuses += [sweep.REFUSED] * (prepared.refused if prepared else 0)
    return statuses[0] if len(statuses) == 1 else sweep.exit_status(statuses)


def fork_server(arguments: list[str], scratch: Path) -> contextlib.AbstractContextManager[None]:
    """One for all jobs of a sweep, which imports while they are planned; none where no rank is forked here."""
    forks_here = not any(item.startswith(("launcher=", "launcher.kind=", "hydra/launcher=")) for item in arguments)
    if is_dry(arguments) or not (forks_here or "hydra/launcher=joblib" in arguments):
        return contextlib.nullcontext()
    from pipeline.forkserver import lent_to_children
    from pipeline.runner import PRELOAD

    return lent_to_children(PRELOAD, scratch)


def interrupted(statuses: list[int], number: int) -> int:
    return next((status for status in statuses if status in INTERRUPTED), 128 + number)


def _statuses(scratch: Path) -> list[int]:
    file = scratch / "statuses"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


if __name__ == "__main__":
    sys.exit(main())
