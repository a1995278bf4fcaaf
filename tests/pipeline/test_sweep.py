"""The jobs of a sweep are planned as Hydra would compose them; the ledger keeps them by their axis values."""

from __future__ import annotations

import json
import threading

import pytest

from pipeline import sweep
from pipeline.begin_sweep import begin_sweep
from pipeline.compose import compose
from pipeline.jobs import MOST_JOBS, axis_faults, plan_jobs, sweep_axes, too_many
from pipeline.messages import Refused
from pipeline.plan import make_plan
from pipeline.table import columns


def planned(*arguments: str):
    fixed, axes = sweep_axes(["-m", "experiment=smoke", *arguments])
    return fixed, axes, list(plan_jobs(fixed, axes))


@pytest.mark.parametrize(
    "axes",
    [
        ["G=2,4", "beta=0,0.01", "epsilon=0.1,0.2"],
        ["epsilon=0.1,0.2", "stages.reasoning_rl.algorithm.epsilon=0.15,0.2"],  # both change the same field
        ["algorithm=grpo,rloo", "seed=0,1"],
        ["evaluation.samples=2,4", "data.difficulty=1,2", "launcher.threads=1,2"],
    ],
)
def test_jobs_are_what_hydra_composes(axes: list[str], tmp_path) -> None:
    _, _, jobs = planned(f"output_dir={tmp_path}", *axes)
    assert len(jobs) == 2 ** len(axes)
    for job in jobs:
        composed = make_plan(compose(job.overrides), job.overrides)
        assert job.plan is not None
        for ours, theirs in zip(job.plan.stages, composed.stages, strict=True):
            assert (ours.name, ours.fingerprint, ours.threads) == (theirs.name, theirs.fingerprint, theirs.threads)
            assert ours.cfg == theirs.cfg


def test_a_grid_of_more_jobs_than_are_planned_is_refused() -> None:
    _, axes = sweep_axes(["-m", f"seed=range(0,{MOST_JOBS // 2})", "G=2,4"])
    assert too_many(axes) is None
    _, axes = sweep_axes(["-m", f"seed=range(0,{MOST_JOBS // 2 + 1})", "G=2,4"])
    assert (fault := too_many(axes)) is not None
    assert (fault.key, fault.problem) == ("seed", "makes this 4,098 jobs, a grid has 4,096 at most")


@pytest.mark.parametrize(
    "axes",
    [
        ["G=2,4", "seed=0,1"],
        ["stages.general_rl.steps=${stages.reasoning_rl.steps},3", "stages.reasoning_rl.steps=5,6"],
        ["beta=${epsilon},0.3", "epsilon=0.1,0.2"],
        [
            "model=qwen3_0_6b",
            "model.trust_remote_code=true,false",
            "student.name_or_path=Qwen/Qwen3-0.6B-Base,Qwen/Qwen3-8B-Base",
        ],
    ],
)
def test_what_a_job_runs_is_what_hydra_composes(axes: list[str], tmp_path) -> None:
    _, _, jobs = planned(f"output_dir={tmp_path}", *axes)
    for job in jobs:
        assert job.composed is not None and job.composed() == compose(job.overrides)


@pytest.mark.parametrize("axis", ["algorithm=glob(*)", "beta=interval(0,0.01)"])
def test_a_grid_needs_values(axis: str) -> None:
    _, axes = sweep_axes(["-m", axis, "seed=0,0,1"])
    (fault,) = axis_faults(axes)
    assert fault.key == axis.partition("=")[0] and axes[1].values == ["0", "1"]


def test_stage_runs_are_counted_once_for_all_jobs(tmp_path) -> None:
    _, axes, jobs = planned("stages.general_rl.algorithm.beta=0.01,0.02", f"output_dir={tmp_path}")
    stages = len(jobs[0].plan.stages)
    assert sweep.summary(jobs) == (
        f"2 jobs ask for {2 * stages} stage runs: {stages + 2} distinct ({stages - 2} shared), 0 cached, "
        f"{stages + 2} to run"
    )
    rows = {line.split()[0]: line.split()[1] for line in sweep.table(axes, jobs).splitlines()[2:]}
    assert rows["general_rl"] == rows["general_rl.eval"] == "2" and rows["reasoning_rl"] == "1"


def test_a_ledger_goes_on_and_grows(tmp_path) -> None:
    fixed, axes, jobs = planned("G=1,4", f"output_dir={tmp_path}")
    sweep.begin(tmp_path, "first", base := sweep.base_of(fixed), axes, jobs)
    sweep.record(tmp_path, "G=4", jobs[1].overrides, "done")
    fixed, axes, jobs = planned("G=4,8", f"output_dir={tmp_path}")
    sweep.begin(tmp_path, "second", base, axes, jobs)
    ledger = json.loads((tmp_path / "sweep.json").read_text())
    assert {name: job["status"] for name, job in ledger["jobs"].items()} == {
        "G=1": "refused",
        "G=4": "done",
        "G=8": "waiting",
    }
    assert ledger["axes"] == {"G": ["1", "4", "8"]} and ledger["command"] == "second"
    assert ledger["jobs"]["G=8"]["values"] == {"G": "8"} and "G: is 1" in ledger["jobs"]["G=1"]["message"]
    sweep.record(tmp_path, "G=16", ["experiment=smoke", "G=16"], "done")  # by a sweeper that chooses as it goes
    assert json.loads((tmp_path / "sweep.json").read_text())["jobs"]["G=16"]["values"] == {"G": "16"}


def test_another_base_has_another_folder(tmp_path) -> None:
    one, same = sweep.base_of(["experiment=smoke"]), sweep.base_of(["experiment=smoke", "until=cold_start", "name=x"])
    other = sweep.base_of(["experiment=smoke", "stages.reasoning_rl.steps=3"])
    assert sweep.folder_of(tmp_path, "s", one) == tmp_path / "s"
    sweep.begin(tmp_path / "s", "", one, [], [])
    assert sweep.folder_of(tmp_path, "s", same) == tmp_path / "s"
    assert sweep.folder_of(tmp_path, "s", other).name.startswith("s-")


def test_jobs_that_end_at_the_same_time_are_all_recorded(tmp_path) -> None:
    writers = [threading.Thread(target=sweep.record, args=(tmp_path, f"seed={n}", [], "done")) for n in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(json.loads((tmp_path / "sweep.json").read_text())["jobs"]) == 16


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (["G=4,8"], 1),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], 2),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=9"], 4),
        (["hydra/launcher=submitit_local"], 1),
    ],
)
def test_cores_are_shared_out_over_jobs_side_by_side(arguments: list[str], number: int) -> None:
    assert sweep.side_by_side(arguments, jobs=4) == number


def test_a_sweeper_that_plans_nothing_is_refused() -> None:
    assert sweep.is_planned(["G=4,8"]) and not sweep.is_planned(["hydra/sweeper=search"])
    with pytest.raises(Refused, match="hydra/sweeper: is basic"):
        sweep.is_planned(["hydra/sweeper=basic", "G=4,8"])


@pytest.mark.parametrize("number", ["abc", "0"])
def test_a_number_of_jobs_side_by_side_that_is_none(number: str) -> None:
    with pytest.raises(Refused, match=rf"^hydra\.launcher\.n_jobs: is {number} -> write how many"):
        sweep.side_by_side(["hydra/launcher=joblib", f"hydra.launcher.n_jobs={number}"], jobs=4)


def test_columns() -> None:
    assert columns([("a", "n"), ("bb", "10")], right=(1,)) == "a    n\n------\nbb  10"


def test_a_dry_sweep_is_refused_as_the_real_one_would_be(capsys) -> None:
    words = ["G=4,8", "experiment=smoke", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0", "dry_run=true"]
    with pytest.raises(Refused, match=r"^hydra\.launcher\.n_jobs: is 0"):
        begin_sweep(words, "python run.py")
    assert capsys.readouterr().out == ""
