"""What executing a plan does: reuse, resume, stop, gates, exit statuses, and the files that a run leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from pipeline import estimates, gates, store
from pipeline.plan_types import Plan
from pipeline.runner import execute, urgency
from pipeline.summary import StageRecord, overhead_seconds
from tests.pipeline.build_plan import config, plan_of, planned


def run(root: Path, plan: Plan, **launcher) -> int:
    cfg = config(root)
    for key, value in launcher.items():
        setattr(cfg.launcher, key, value)
    return execute(plan, cfg, root / "runs" / plan.name, ["pipeline=counting"], preload=("torch",))


def summary(root: Path, name: str = "run") -> dict:
    return json.loads((root / "runs" / name / "summary.json").read_text())


def statuses(root: Path, name: str = "run") -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in summary(root, name)["stages"]}


def chain(root: Path, **last) -> Plan:
    """a -> b -> c; keyword arguments change c."""
    a = planned("a")
    b = planned("b", before=a, start=10)
    return plan_of(root, a, b, planned("c", before=b, start=100, **last))


def entry(plan: Plan, name: str) -> Path:
    stage = plan.stage(name)
    return store.entry_path(plan.store, stage.kind, stage.fingerprint)


def count(plan: Plan, name: str) -> float:
    return json.loads((entry(plan, name) / "total/total.json").read_text())["count"]


def test_a_result_stands_where_its_work_cannot_be_noted(tmp_path):
    plan = plan_of(tmp_path, planned("a"))
    (plan.store / estimates.WORK).mkdir(parents=True)
    assert run(tmp_path, plan) == 0 and statuses(tmp_path) == {"a": "ran"}


def test_a_chain_runs_once_and_is_cached_afterwards(tmp_path):
    plan = chain(tmp_path)
    assert run(tmp_path, plan) == 0
    assert statuses(tmp_path) == {"a": "ran", "b": "ran", "c": "ran"}
    assert count(plan, "c") == 3 + 13 + 103
    assert run(tmp_path, plan) == 0
    assert statuses(tmp_path) == {"a": "cached", "b": "cached", "c": "cached"}
    assert summary(tmp_path)["stages"][2]["metrics"]["count/value"] == 119
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run", ".locks"}


def test_the_manifest_has_the_fields_of_the_contract(tmp_path):
    plan = chain(tmp_path)
    run(tmp_path, plan)
    manifest = json.loads((entry(plan, "b") / "artifact.json").read_text())
    fields = (
        "kind fingerprint recipe_version source_digest stage inputs outputs metrics seconds seed engine ranks threads"
    )
    assert list(manifest) == [*fields.split(), "git", "packages", "hardware", "created"]
    first = json.loads((entry(plan, "a") / "artifact.json").read_text())
    digest = first["outputs"]["total"]["digest"]
    assert manifest["inputs"] == {"before": {"fingerprint": plan.stage("a").fingerprint, "digest": digest}}
    assert manifest["outputs"]["total"] == {
        "kind": "metrics",
        "path": "total",
        "digest": store.digest_folder(entry(plan, "b") / "total"),
        "rows": 3,
    }
    assert {path.name for path in entry(plan, "b").iterdir()} == {
        "artifact.json",
        "config.yaml",
        "metrics.jsonl",
        "total",
    }


def test_facts_that_a_plan_passes_on_never_replace_the_digest(tmp_path):
    """The outline of a stage may hand on all that the manifest of its input says."""
    a = planned("a")
    a.outline.outputs["total"] = {"digest": "of the input", "kind": "model", "path": "elsewhere", "rows": 9}
    plan = plan_of(tmp_path, a)
    assert run(tmp_path, plan) == 0
    output = json.loads((entry(plan, "a") / "artifact.json").read_text())["outputs"]["total"]
    digest = store.digest_folder(entry(plan, "a") / "total")
    assert output == {"digest": digest, "kind": "metrics", "path": "total", "rows": 3}


def test_links_into_the_store_survive_moving_the_outputs(tmp_path):
    plan = chain(tmp_path / "here")
    run(tmp_path / "here", plan)
    (tmp_path / "here").rename(tmp_path / "there")
    assert (tmp_path / "there/runs/run/stages/c/artifact.json").exists()


def test_forcing_runs_again_and_readers_follow_the_digest(tmp_path):
    run(tmp_path, chain(tmp_path))
    a = planned("a", forced=True)  # the same recipe and the same bytes
    b = planned("b", before=a, start=10)
    run(tmp_path, plan_of(tmp_path, a, b))
    assert statuses(tmp_path) == {"a": "ran", "b": "cached"}

    plan = plan_of(tmp_path, a, b)
    path = entry(plan, "a") / "total/total.json"
    manifest = entry(plan, "a") / "artifact.json"
    path.write_text(json.dumps({"count": 1000}))  # as if the rebuild had come out otherwise
    changed = json.loads(manifest.read_text())
    changed["outputs"]["total"]["digest"] = store.digest_folder(path.parent)
    manifest.write_text(json.dumps(changed))
    a.forced = False
    run(tmp_path, plan)
    assert statuses(tmp_path) == {"a": "cached", "b": "ran"}
    assert count(plan, "b") == 1013


def test_a_crash_stops_the_chain_and_the_next_run_goes_on(tmp_path, capsys):
    plan = chain(tmp_path)
    plan.stage("b").cfg.fail, plan.stage("b").cfg.fail_at_step = "raise", 3
    assert run(tmp_path, plan) == 1
    assert statuses(tmp_path) == {"a": "ran", "b": "failed", "c": "skipped"}
    shown = capsys.readouterr().out
    assert "b: failed: ValueError: a planted fault" in shown
    assert "Traceback" not in shown
    console = (tmp_path / "runs/run/console.log").read_text()
    assert "Traceback" in console and 'raise ValueError("a planted fault")' in console
    assert summary(tmp_path)["error"] == {"stage": "b", "message": "ValueError: a planted fault"}

    plan.stage("b").cfg.fail = ""
    assert run(tmp_path, plan) == 0
    assert statuses(tmp_path) == {"a": "cached", "b": "resumed", "c": "ran"}
    rows = [json.loads(line)["step"] for line in (entry(plan, "b") / "metrics.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3]
    assert "resumed from step 2" in summary(tmp_path)["stages"][1]["notes"]


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("stage_failed", "it trained zero steps"),
        ("nothing", "it ended without writing its output total"),
        ("disk_full", "the disk is full"),
    ],
)
def test_results_that_must_not_be_used_are_failures(tmp_path, capsys, fail, message):
    plan = chain(tmp_path, fail=fail)
    assert run(tmp_path, plan) == 1
    assert f"c: failed: {message}" in capsys.readouterr().out
    assert statuses(tmp_path) == {"a": "ran", "b": "ran", "c": "failed"}
    assert not entry(plan, "c").exists()


def test_a_stage_beyond_until_is_skipped(tmp_path, capsys):
    plan = chain(tmp_path)
    plan.stage("c").wanted = False
    assert run(tmp_path, plan) == 0
    assert statuses(tmp_path) == {"a": "ran", "b": "ran", "c": "skipped"}
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["c", "skipped"] in table and not any("waiting" in line for line in table)


def test_another_plan_under_the_same_name_moves_the_old_run(tmp_path):
    run(tmp_path, chain(tmp_path))
    run(tmp_path, chain(tmp_path, steps=5))
    run(tmp_path, chain(tmp_path, steps=6))
    counts = [summary(tmp_path, name)["stages"][2]["metrics"]["count/value"] for name in ("run.1", "run.2", "run")]
    assert counts == [119, 121, 122]
    assert (tmp_path / "runs/run.1/stages/c/artifact.json").exists()


def test_another_plan_does_not_move_a_run_that_goes_on(tmp_path):
    plan = chain(tmp_path, step_seconds=0.3)
    thread = threading.Thread(target=run, args=(tmp_path, plan))
    thread.start()
    while not (tmp_path / "runs/run/plan.json").exists():
        time.sleep(0.01)
    assert run(tmp_path, chain(tmp_path, steps=5)) == 2
    thread.join()
    assert set(statuses(tmp_path).values()) == {"ran"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_checkpoints_and_the_same_command_goes_on(tmp_path, number, code):
    plan = chain(tmp_path, step_seconds=0.2, steps=20)
    threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
    assert run(tmp_path, plan) == code
    assert summary(tmp_path)["status"] == "interrupted"
    assert statuses(tmp_path) == {"a": "ran", "b": "ran", "c": "skipped"}
    plan.stage("c").cfg.step_seconds = 0.0
    assert run(tmp_path, plan) == 0
    assert statuses(tmp_path) == {"a": "cached", "b": "cached", "c": "resumed"}
    rows = [json.loads(line)["step"] for line in (entry(plan, "c") / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, 21))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB; skipped where the user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("pages_left", [0, 4, 8, 10, 13, 16])
def test_a_full_disk_is_one_clear_line_and_nothing_is_lost(small_disk, capsys, pages_left):
    """It fills up at the first write, in a step, at the seal, in the second stage."""
    plan = chain(small_disk / "outputs")
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "fill").write_bytes(b"x" * (free - pages_left * 4096))
    assert run(small_disk / "outputs", plan) == 1
    assert "is full: free some space and run again" in capsys.readouterr().out.splitlines()[-1]
    sealed = [path.parent.name for path in (small_disk / "outputs").glob("store/*/artifact.json")]
    (small_disk / "fill").unlink()
    assert run(small_disk / "outputs", plan) == 0
    again = statuses(small_disk / "outputs")
    assert [again[name] for name in "abc" if entry(plan, name).name in sealed] == ["cached"] * len(sealed)


def gated(root: Path, value: float, **gate) -> Plan:
    """a -> c with an evaluation of a; the gate is a's."""
    a = planned("a", value=0.5)
    for key, setting in gate.items():
        setattr(a.cfg.gate, key, setting)
    evaluation = planned("a.eval", before=a, value=value, start=7)
    evaluation.evaluates = "a"
    return plan_of(root, a, planned("c", before=a), evaluation)


def test_a_gate_stops_the_run_before_its_readers(tmp_path, capsys):
    assert run(tmp_path, gated(tmp_path, 0.2, min=0.4)) == 1
    assert statuses(tmp_path) == {"a": "ran", "a.eval": "ran", "c": "skipped"}
    told = capsys.readouterr().out
    assert "reasoning/pass@1 is 0.2, below gate.min=0.4 -> everything so far is kept" in told
    assert "stages.a.gate.on_fail=warn" in told


def test_a_gate_tells_the_interval_and_the_names_that_there_are():
    plan = plan_of(Path("."), planned("a"))
    gate = plan.stage("a").cfg.gate
    gate.min, metrics = 0.4, {"a": {"reasoning/pass@1": 0.2, "reasoning/pass@1_low": 0.1, "reasoning/pass@1_high": 0.3}}
    assert "is 0.2 (95% interval 0.1-0.3), below" in gates.judge(plan, plan.stage("a"), metrics)
    gate.metric = "reasoning/pas@1"
    told = gates.judge(plan, plan.stage("a"), metrics)
    assert told.startswith("there is no metric reasoning/pas@1 -> write reasoning/pass@1 (there are: ")


def test_a_gate_that_holds_or_only_warns_lets_pass(tmp_path, capsys):
    assert run(tmp_path, gated(tmp_path, 0.45, min=0.4)) == 0
    assert run(tmp_path, gated(tmp_path, 0.2, min=0.4, on_fail="warn")) == 0
    told = capsys.readouterr().out
    assert "below gate.min=0.4" in told and "to go on all the same" not in told
    assert json.loads((tmp_path / "runs/run/summary.json").read_text())["gates"].keys() == {"a"}
    assert "a: gate: reasoning/pass@1 is 0.2, below gate.min=0.4" in (tmp_path / "runs/run/report.html").read_text()
    assert statuses(tmp_path)["c"] == "cached"


def test_a_gate_on_the_drop_compares_with_the_model_it_started_from(tmp_path):
    plan = chain(tmp_path, value=0.6)
    plan.stage("c").inputs["before"].kind = "model"
    plan.stage("c").cfg.gate.max_drop = 0.5
    assert run(tmp_path, plan) == 0  # from 1.0 to 0.6
    plan.stage("c").cfg.gate.max_drop = 0.3
    assert run(tmp_path, plan) == 1


def test_the_longest_chain_goes_first_and_evaluations_last(tmp_path):
    a = planned("a")
    evaluation = planned("a.eval", before=a, start=1)
    evaluation.evaluates = "a"
    short = planned("short", before=a, start=2)
    long = planned("long", before=a, start=3)
    plan = plan_of(tmp_path, a, evaluation, short, long, planned("end", before=long))
    order = sorted([evaluation, short, long], key=lambda stage: urgency(plan, stage))
    assert [stage.name for stage in order] == ["long", "short", "a.eval"]


def test_independent_branches_run_beside_each_other(tmp_path):
    trace = tmp_path / "trace"
    stages = [planned(name, start=i, steps=5, step_seconds=0.1, trace=str(trace)) for i, name in enumerate("ab")]
    assert run(tmp_path, plan_of(tmp_path, *stages, parallel=2), kind="local") == 0
    spans = [json.loads((tmp_path / f"runs/run/stages/{name}/artifact.json").read_text())["created"] for name in "ab"]
    kinds = [line.split()[0] for line in trace.read_text().splitlines()]
    assert kinds[:2] == ["start", "start"], spans


def test_overhead_is_the_time_in_which_no_stage_is_at_work():
    spans = [(0.0, 4.0), (3.0, 6.0), (3.5, 5.0), (8.0, 9.0), None]
    records = [StageRecord("s", "count", "f", span=span) for span in spans]
    assert overhead_seconds(12.0, records) == 12.0 - 6.0 - 1.0


def test_no_result_is_lost_when_the_run_folder_is(tmp_path):
    plan = chain(tmp_path)
    run(tmp_path, plan)
    shutil.rmtree(tmp_path / "runs")
    run(tmp_path, plan)
    assert set(statuses(tmp_path).values()) == {"cached"}
