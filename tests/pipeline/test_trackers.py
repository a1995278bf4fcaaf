"""wandb really runs here, offline and without a key; what it recorded is read back from its own file."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import wandb

from pipeline.config import TrackerConfig
from pipeline.store import entry_path
from pipeline.trackers import Follower, NoTracker, has_key, make_tracker, wandb_id

ROOT = Path(__file__).parents[2]


@dataclass
class Planned:
    name: str = "reasoning_rl"
    kind: str = "rl"
    fingerprint: str = "abc123"


def append(path: Path, *rows: dict) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # set first, so that what the tracker sets is undone afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / ".netrc"))
    (tmp_path / "home").mkdir()
    wandb.teardown()  # it reads the environment once a process
    yield
    wandb.teardown()


def transaction_log(data: bytes) -> Iterator[bytes]:
    """Records of wandb's file: seven bytes of its own, then LevelDB's log format (blocks of 32 KiB; records cut into
    fragments of type 1 full, 2 first, 3 middle, 4 last, each behind a header of checksum, length and type)."""
    position, whole = 7, b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _checksum, length, fragment = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if fragment in (1, 4):
            yield whole
            whole = b""


def recorded(folder: Path, patience_seconds: float = 30) -> dict:
    """The records of one offline wandb folder, once its writer, a process of its own, has closed it."""
    until = time.monotonic() + patience_seconds
    while (found := records_so_far(folder))["exit"] is None and time.monotonic() < until:
        time.sleep(0.1)
    return found


def records_so_far(folder: Path) -> dict:
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    found: dict = {"history": [], "summary": {}, "config": {}, "artifacts": [], "exit": None}
    for data in transaction_log(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["run"] = record.run
            for item in record.run.config.update:
                found["config"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        elif kind == "history":
            values = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            found["history"].append({key: json.loads(value) for key, value in values.items()})
        elif kind == "summary":
            for item in record.summary.update:
                found["summary"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
        elif kind == "artifact":
            found["artifacts"].append(record.artifact)
        elif kind == "exit":
            found["exit"] = record.exit.exit_code
    return found


def test_the_default_imports_no_wandb():
    code = (
        "import sys; from pathlib import Path; from pipeline.config import TrackerConfig;"
        "from pipeline.trackers import make_tracker; make_tracker(TrackerConfig(), 'a', 'a', Path('.'));"
        "sys.exit('wandb' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    assert isinstance(make_tracker(TrackerConfig(), "a", "a", Path(".")), NoTracker)


def test_wandb_offline_interrupted_and_resumed(no_key, tmp_path):
    outputs = tmp_path / "outputs"
    work = tmp_path / "work"
    work.mkdir()
    metrics = work / "metrics.jsonl"

    tracker = make_tracker(TrackerConfig(kind="wandb"), "run1", "sweep1", outputs)
    assert tracker.mode == "offline"
    tracker.stage_started(Planned(), work, {"G": 8})
    tracker.poll()  # nothing there yet
    append(metrics, {"step": 1, "reward/mean": 0.25, "time/s": 1.0}, {"step": 2, "reward/mean": 0.5, "loss/kl": None})
    tracker.poll()
    tracker.close()  # the driver is interrupted

    # The stage resumes from a checkpoint at step 1, does step 2 once more and goes on; its folder is sealed meanwhile.
    tracker = make_tracker(TrackerConfig(kind="wandb"), "run1", "sweep1", outputs)
    tracker.stage_started(Planned(), work, {"G": 8})
    tracker.poll()
    metrics.write_text(metrics.read_text().splitlines()[0] + "\n")
    append(metrics, {"step": 2, "reward/mean": 0.5, "time/s": 9.0}, {"step": 3, "reward/mean": 0.75})
    tracker.poll()
    work.rename(tmp_path / "sealed")
    append(tmp_path / "sealed" / "metrics.jsonl", {"step": 4, "reward/mean": 1.0})
    append(tmp_path / "sealed" / "samples.jsonl", {"response": "4", "parts": {"format": 1.0}}, {"response": None})
    with (tmp_path / "sealed" / "samples.jsonl").open("a") as file:
        file.write('{"response": "half wri')
    tracker.stage_finished("reasoning_rl", "resumed", {"reward/mean": 1.0}, tmp_path / "sealed")
    tracker.stage_finished("base", "cached", {}, tmp_path / "sealed")
    tracker.close()

    first, second = (recorded(folder) for folder in sorted((outputs / "wandb").glob("offline-run-*")))
    assert [row["reward/mean"] for row in first["history"]] == [0.25, 0.5]
    assert [row["reward/mean"] for row in second["history"]] == [0.75, 1.0]  # step 2 is not sent twice
    assert [row["_step"] for row in first["history"] + second["history"]] == [1, 2, 3, 4]
    table = second["history"][-1]
    assert (table["samples._type"], table["samples.nrows"]) == ("table-file", 2)
    (file,) = (outputs / "wandb").glob(f"offline-run-*/files/{table['samples.path']}")
    assert json.loads(file.read_text())["data"] == [["4", '{"format": 1.0}'], [None, None]]
    assert first["run"].run_id == second["run"].run_id == wandb_id("run1", "reasoning_rl", "abc123")
    assert (second["run"].run_group, second["run"].job_type) == ("sweep1", "rl")
    assert second["run"].display_name == "run1/reasoning_rl"
    assert second["config"]["G"] == 8
    assert second["summary"]["final/reward/mean"] == 1.0
    assert (first["exit"], second["exit"]) == (1, 0)
    assert not list((tmp_path / "home").iterdir())  # everything lies under the output folder


def test_stages_side_by_side_are_two_jobs(no_key, tmp_path):
    tracker = make_tracker(TrackerConfig(kind="wandb"), "run1", "run1", tmp_path / "outputs")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tracker.stage_started(Planned(name=name), tmp_path / name, {})
    for step in (1, 2):
        for name in ("a", "b"):
            append(tmp_path / name / "metrics.jsonl", {"step": step, f"loss/{name}": step})
        tracker.poll()
    tracker.close()
    found = [recorded(folder) for folder in (tmp_path / "outputs" / "wandb").glob("offline-run-*")]
    keys = {run["run"].display_name: [sorted(k for k in row if "/" in k) for row in run["history"]] for run in found}
    assert keys == {"run1/a": [["loss/a"]] * 2, "run1/b": [["loss/b"]] * 2}


def test_a_server_that_cannot_be_reached_leaves_the_run_offline(no_key, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.setattr("pipeline.trackers.CONNECT_SECONDS", 2.0)
    (tmp_path / "work").mkdir()
    tracker = make_tracker(TrackerConfig(kind="wandb"), "run1", "run1", tmp_path / "outputs")
    assert tracker.mode == "online"
    tracker.stage_started(Planned(), tmp_path / "work", {})
    tracker.close()
    assert tracker.mode == "offline"
    assert "going on offline" in capsys.readouterr().out
    written = b"".join(path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file())
    assert b"f" * 40 not in written


def test_a_key_is_looked_for_where_wandb_looks(no_key, monkeypatch, tmp_path):
    server = "https://api.wandb.ai"
    assert not has_key(server)
    netrc = tmp_path / "home" / ".netrc"
    netrc.write_text("machine example.org login user password secret\n")
    assert not has_key(server)
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    assert has_key(server)
    assert not has_key("https://wandb.example.com")  # another server's key
    netrc.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert has_key(server)


def test_follower_waits_for_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = Follower(tmp_path)
    assert follower.new_rows() == []
    path.write_text('{"step": 1}\n{"st')
    assert follower.new_rows() == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert follower.new_rows() == [{"step": 2}]
    assert follower.new_rows() == []


def test_follower_finds_what_was_written_just_before_the_folder_moved(tmp_path):
    """An evaluation writes its one line at its very end, and is sealed at once."""
    (tmp_path / "partial").mkdir()
    follower = Follower(tmp_path / "partial")
    assert follower.new_rows() == []
    append(tmp_path / "partial" / "metrics.jsonl", {"step": 0, "pass@1": 0.5})
    (tmp_path / "partial").rename(tmp_path / "sealed")
    assert follower.new_rows() == [{"step": 0, "pass@1": 0.5}]


def test_a_run_with_wandb_is_a_group_with_a_job_a_stage(no_key, tmp_path):
    from pipeline.runner import execute
    from tests.pipeline.build_plan import config, plan_of, planned

    first = planned("a")
    plan = plan_of(tmp_path, first, planned("b", before=first, start=10))
    cfg = config(tmp_path)
    cfg.tracker = TrackerConfig(kind="wandb")
    assert execute(plan, cfg, tmp_path / "runs" / "run", [], preload=("torch",)) == 0
    found = [recorded(folder) for folder in sorted((tmp_path / "wandb").glob("offline-run-*"))]
    assert {(job["run"].run_group, job["run"].display_name) for job in found} == {("run", "run/a"), ("run", "run/b")}
    for job in found:
        assert job["exit"] == 0
        assert job["history"], "no metrics arrived"
        assert job["summary"]["status"] == "ran"
        (artifact,) = job["artifacts"]
        made = plan.stage(job["run"].display_name.removeprefix("run/"))
        about, files = json.loads(artifact.metadata), {file.path: file.ref for file in artifact.manifest.contents}
        assert (artifact.name, artifact.type, {*artifact.aliases}) == (
            f"{made.name}-total",
            "metrics",
            {made.fingerprint, "latest"},
        )
        output = entry_path(plan.store, made.kind, made.fingerprint) / "total" / "total.json"
        assert files == {"total/total.json": output.resolve().as_uri()} and len(about["digest"]) == 64
        read = {port: source["fingerprint"] for port, source in about["inputs"].items()}
        assert read == {port: source.fingerprint for port, source in made.inputs.items()}
    assert execute(plan, cfg, tmp_path / "runs" / "run", [], preload=("torch",)) == 0
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2  # cached stages are no jobs
