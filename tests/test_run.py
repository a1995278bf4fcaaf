"""run.py as a program: exit statuses, a dry run without torch, sweeps and their ledger."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import sweep
from pipeline.config import RunConfig
from pipeline.messages import root_groups

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """run.py with these arguments; `code` is what the process does after it."""
    program = ["run.py"]
    if code:
        program = ["-c", f"import sys, run\nstatus = run.main()\n{code}\nsys.exit(status)"]
    command = [sys.executable, *program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_dry_run_imports_no_torch_writes_nothing_and_is_quick(tmp_path: Path) -> None:
    heavy = "('torch', 'transformers', 'datasets', 'deepspeed', 'wandb', 'reasoning_gym', 'numpy')"
    code = f"import time; print('heavy:', [m for m in {heavy} if m in sys.modules], 'cpu:', time.process_time())"
    done = run("pipeline=r1_style", "dry_run=true", f"output_dir={tmp_path}/new", code=code)
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stdout
    assert float(done.stdout.split("cpu:")[1]) < 2.0  # of processor time: other tests run beside this one
    assert "rejection_sampling" in done.stdout and "21 stages, 0 cached, 21 to run" in done.stdout
    assert done.stderr == "" and not any(tmp_path.iterdir())


def test_a_refusal_is_one_line_a_fault_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("G=1", "until=nope", f"output_dir={tmp_path}/new")
    assert done.returncode == 2 and done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "until",
        "G",
    ]
    assert not any(tmp_path.iterdir())


def test_a_fault_that_hydra_finds_first(tmp_path: Path) -> None:
    done = run("pipeline=r1_styl")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("pipeline: there is no pipeline 'r1_styl' -> write r1_style (there are: ")


def test_help_has_a_line_for_every_group_and_every_knob_of_the_root() -> None:
    text = run("--help").stdout
    starts = {word.split("=")[0].split(".")[0].lstrip("~") for line in text.splitlines() for word in line.split("  ")}
    knobs = {item.name for item in dataclasses.fields(RunConfig)}
    assert (knobs | set(root_groups())) - starts == set()
    for word in (
        "dapo          DAPO (arXiv:2503.14476): clip-higher",
        "STAGE.eval",
        "Exit status: 0 done",
        "install=bash",
    ):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_version_is_that_of_the_project() -> None:
    done = run("pipeline=r1_style", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    name, number = done.stdout.split()
    assert name == "posttrain" and f'version = "{number}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--dry-run", "--dry-run: is no flag -> settings have no dashes: write dry_run=..."),
        ("--multi-run", "--multi-run: is no flag -> write --multirun"),
        ("--kl-coef=0.1", "--kl-coef: is no flag -> settings have no dashes: write beta=..."),
        ("--resume", "--resume: is no flag -> leave it out: the same command goes on from the last checkpoint"),
        ("--resolve", "--resolve: prints nothing by itself -> write --cfg job --resolve"),
        ("-r", "--run: is what happens anyway -> leave it out"),
        ("-x", "-x: is no flag -> settings are written KEY=VALUE; see python run.py --help"),
    ],
)
def test_an_unknown_flag_is_one_line(flag: str, told: str, tmp_path: Path) -> None:
    more = ["--cfg=job"] if flag == "-r" else []
    done = run(flag, *more, f"output_dir={tmp_path}/new")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{told}\n")


def test_an_unknown_axis_names_the_nearest_key(tmp_path: Path) -> None:
    done = run("-m", "G=4,8", "epsilo=0.1,0.2", "dry_run=true", f"output_dir={tmp_path}/new")
    assert done.returncode == 2
    assert "epsilo: there is no key 'epsilo' -> write epsilon\n" in done.stderr + done.stdout
    assert "object_type" not in done.stderr + done.stdout


def test_any_word_for_true_makes_a_sweep_a_dry_run(tmp_path: Path) -> None:
    assert run("-m", "G=4,8", "dry_run=True", f"output_dir={tmp_path}/new").returncode == 0
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("axis", "status"), [("G=1,8", 1), ("G=4,8", 0), ("G=4,many", 1), ("G=many,few", 2)])
def test_exit_status_of_a_sweep(axis: str, status: int, tmp_path: Path) -> None:
    done = run("-m", axis, "dry_run=true", f"output_dir={tmp_path}/new")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_multirun_may_stand_anywhere(tmp_path: Path) -> None:
    done = run("dry_run=true", f"output_dir={tmp_path}/new", "-m", "G=1,0")
    assert done.returncode == 2 and "\nG: is 1" in done.stderr and "usage" not in done.stderr


def test_a_sweep_over_nothing_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    axis = "stages.reasoning_rl.algorithm.epsilon=0.1,0.2"
    done = run("-m", "stages.reasoning_rl.updates_per_rollout=1", axis, f"output_dir={tmp_path}/new")
    assert done.returncode == 2 and done.stdout == "" and "acts on no stage" in done.stderr
    assert not any(tmp_path.iterdir())


def test_a_sweep_of_refused_jobs_names_them_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run("-m", "G=1,0", "stages.general_rl.G=1", "experiment=smoke", f"output_dir={tmp_path}/new")
    assert done.returncode == 2 and done.stdout == ""
    assert "refused: G=1\nG: is 1" in done.stderr and "refused: G=0" in done.stderr
    assert not any(tmp_path.iterdir())


def test_statuses_add_up() -> None:
    assert sweep.exit_status([0, 0]) == 0
    assert sweep.exit_status([0, 1, 2]) == 1
    assert sweep.exit_status([2, 0]) == 1
    assert sweep.exit_status([2, 2]) == 2


@pytest.mark.slow
def test_the_ledger_of_a_sweep_says_why_a_job_failed(tmp_path: Path) -> None:
    gate = ("stages.problems.gate.metric=reasoning/train_problems", "stages.problems.gate.min=400,1e9")
    done = run("-m", "experiment=smoke", "until=problems", *gate, "allow_inert=true", f"output_dir={tmp_path}")
    assert done.returncode == 1
    (ledger,) = (json.loads(path.read_text()) for path in (tmp_path / "sweeps").glob("*/sweep.json"))
    told = {job["status"]: job["message"] for job in ledger["jobs"].values()}
    assert told["done"] == "" and told["failed"].startswith("problems: gate: reasoning/train_problems is 512, below")


@pytest.mark.slow
def test_a_repeated_sweep_finds_everything_in_stable_folders(tmp_path: Path) -> None:
    arguments = (
        "-m",
        "G=4,8",
        "experiment=smoke",
        "until=problems",
        "allow_inert=true",
        "launcher=inline",
        f"output_dir={tmp_path}",
    )
    assert run(*arguments).returncode == 0
    folder = tmp_path / "sweeps" / "r1_style-smoke"
    assert {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")} == {"G=4", "G=8"}
    assert run(*arguments).returncode == 0
    for job in ("G=4", "G=8"):
        stages = json.loads((folder / job / "summary.json").read_text())["stages"]
        assert {stage["status"] for stage in stages if stage["name"] == "problems"} == {"cached"}


@pytest.mark.slow
def test_joblib_and_optuna_run_the_jobs_of_a_sweep(tmp_path: Path) -> None:
    common = ("-m", "experiment=smoke", "launcher=inline", f"output_dir={tmp_path}")
    joblib = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = run(*common, "seed=0,1", "until=problems", "allow_inert=true", *joblib)
    assert done.returncode == 0 and "objective" not in done.stderr, done.stderr
    (ledger,) = (json.loads(path.read_text()) for path in (tmp_path / "sweeps").glob("*/sweep.json"))
    assert {name: job["status"] for name, job in ledger["jobs"].items()} == {"seed=0": "done", "seed=1": "done"}

    wanted = ("hydra/sweeper=search", "hydra.sweeper.n_trials=2")
    axis = "stages.problems.seed=choice(0,1)"
    refused = run(*common, *wanted, axis, "until=problems")
    assert refused.returncode == 2 and refused.stderr.startswith("objective.stage: is not set")
    objective = ("objective.stage=problems", "objective.metric=reasoning/train_problems")
    done = run(*common, *wanted, *objective, axis, "until=problems")
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "sweeps").glob("*/optimization_results.yaml")
    assert "best_value: " in results.read_text() and "best_value: 0" not in results.read_text()
