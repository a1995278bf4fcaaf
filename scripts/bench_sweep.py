"""What does a sweep cost beside its stages? Its wall time against the time of its distinct stages, and its planning.

    python scripts/bench_sweep.py
    python scripts/bench_sweep.py pipeline=r1_style experiment=smoke until=reasoning_rl.eval G=4,8 seed=0,1

Every sweep starts from an empty store in a folder of its own, on one thread a stage: one stage at a time, where the sum
of the stages' seconds is the least that it could take; two at a time, as by default; and by joblib, two jobs at a time.
Then 1,000 jobs whose values differ are planned. Alone on the machine, or the ratios mean nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWEEP = ("pipeline=r1_style", "experiment=smoke", "until=reasoning_rl.eval", "G=4,8", "epsilon=0.1,0.2", "seed=0,1")
WAYS = {
    "one stage at a time": ("launcher.parallel_stages=1",),
    "two stages side by side": ("launcher.parallel_stages=2",),
    "two jobs side by side": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2"),
}
TEN = range(10, 20)
THOUSAND = ("G=range(2,12)", f"beta={','.join(f'0.0{n}' for n in TEN)}", f"epsilon={','.join(f'0.{n}' for n in TEN)}")


def main() -> None:
    axes = tuple(sys.argv[1:]) or SWEEP
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: {' '.join(axes)}")
    for name, options in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            wall = seconds_of(*axes, "launcher.threads=1", *options, f"output_dir={folder}")
            taken = [json.loads(path.read_text())["seconds"] for path in Path(folder).glob("store/*/artifact.json")]
        print(f"{name}: {wall:.1f} s for {len(taken)} distinct stages of {sum(taken):.1f} s: {wall / sum(taken):.2f}")
    with tempfile.TemporaryDirectory() as folder:
        wall = seconds_of("pipeline=r1_style", "experiment=smoke", *THOUSAND, "dry_run=true", f"output_dir={folder}")
    print(f"1,000 jobs planned in {wall:.1f} s")


def seconds_of(*arguments: str) -> float:
    """Of a sweep that must succeed; else its output is shown."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "run.py", "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
