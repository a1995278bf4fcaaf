"""The folder of one run: whose it is, and where an older run under the same name goes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.plan_types import Plan
from pipeline.store import write_json
from pipeline.summary import plan_as_dict


@contextlib.contextmanager
def claim(run_dir: Path, plan: Plan) -> Iterator[bool]:
    """Have `run_dir` hold this plan. False: another plan is running there now, and nothing was touched.

    The same plan shares its folder, also with a run that goes on at this moment; another plan first moves the old run
    to <name>.1, .2, ... (the relative links into the store stay right).
    """
    locks = run_dir.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / run_dir.name).open("a") as file:
        alone = _alone(file.fileno())
        if alone and not _is_same(run_dir, plan):
            move_aside(run_dir)
        if alone:
            run_dir.mkdir(parents=True, exist_ok=True)
            write_json(run_dir / "plan.json", plan_as_dict(plan))
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        yield _is_same(run_dir, plan)


def _alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(run_dir: Path, plan: Plan) -> bool:
    path = run_dir / "plan.json"
    if not path.exists():
        return True
    return bool(json.loads(path.read_text())["identity"] == plan_as_dict(plan)["identity"])


def move_aside(run_dir: Path) -> Path:
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    return run_dir.rename(target)


def link(path: Path, target: Path) -> None:
    """A relative link, so that the whole output folder may be moved; replaced in one step."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
    temporary.replace(path)
