"""What may go from a store and what may not: needed, in use, unfinished, replaced, left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import store
from pipeline.collect import Item, needed_by, remove, survey
from pipeline.messages import Refused
from tests.pipeline.notes import Notes, chain

HOLD = """
import sys, threading, time
from pathlib import Path
from pipeline import store
name = sys.argv[2].rpartition("-")
with store.locked(Path(sys.argv[1]), name[0], name[2], print, threading.Event()):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """plain and other share first and middle."""
    root = tmp_path_factory.mktemp("finished")
    assert chain(root, "plain").run() == 0
    assert chain(root, "other", last="others").run() == 0
    return root


@pytest.fixture
def root(finished, tmp_path) -> Path:
    shutil.copytree(finished, tmp_path / "root", symlinks=True)
    return tmp_path / "root"


def names(items: list[Item]) -> list[str]:
    return [item.folder.name for item in items]


def going(root: Path, **options) -> list[Item]:
    return [item for item in survey(root, **options) if not item.keep]


def entry_of(root: Path, run: str, stage: str) -> Path:
    return (root / "runs" / run / "stages" / stage).resolve()


def test_results_of_runs_stay_and_those_of_a_removed_run_go(root):
    assert going(root) == []
    alone = entry_of(root, "other", "last")
    shutil.rmtree(root / "runs/other")
    (item,) = going(root)
    assert item.folder.name == alone.name
    assert item.size == sum(path.stat().st_size for path in alone.rglob("*") if path.is_file())
    assert item.what.startswith("last, made 20")
    assert alone.exists()  # a survey only looks
    assert remove(item, root)
    assert not alone.exists()
    assert (len(survey(root)), going(root)) == (3, [])
    assert chain(root, "plain").run() == 0
    told = json.loads((root / "runs/plain/summary.json").read_text())["stages"]
    assert [stage["status"] for stage in told] == ["cached", "cached", "cached"]


def test_a_sweeps_jobs_are_runs(root):
    (root / "sweeps/sweep").mkdir(parents=True)
    (root / "runs/other").rename(root / "sweeps/sweep/G=4")
    assert going(root) == []
    assert "sweeps/sweep/G=4" in needed_by(root)[entry_of(root, "plain", "first").name]


def test_what_a_plan_names_is_needed_before_it_is_linked(root):
    """A run that goes on at this moment."""
    shutil.rmtree(root / "runs/other/stages")
    assert going(root) == []


def test_what_is_wired_by_its_path_is_needed(root):
    used = entry_of(root, "other", "last")
    more = Notes(root, "more")
    more.add("more", text="more", inputs={"before": f"path:{used / 'rows'}"})
    assert more.run() == 0
    shutil.rmtree(root / "runs/other")
    assert going(root) == []


def test_what_a_config_reads_is_needed(root):
    """model.name_or_path=..., data.path=...: without it the same command would be refused."""
    used = entry_of(root, "other", "last")
    more = Notes(root, "more")
    more.add("more", text="more", path=str(used / "rows/train.jsonl"))
    assert more.run() == 0
    shutil.rmtree(root / "runs/other")
    assert going(root) == []


def test_an_adapter_keeps_the_result_that_holds_its_base(root):
    base = entry_of(root, "other", "last")
    shutil.rmtree(root / "runs/other")
    config = entry_of(root, "plain", "last") / "rows/adapter_config.json"
    config.write_text(json.dumps({"base_model_name_or_path": str(base / "rows")}))
    assert going(root) == []


def test_what_is_kept_by_name(root):
    alone = entry_of(root, "other", "last")
    shutil.rmtree(root / "runs/other")
    assert going(root, keep=[alone.name]) == going(root, keep=[str(alone)]) == []
    with pytest.raises(Refused, match="--keep: there is no 'note-1'"):
        survey(root, keep=["note-1"])


def test_a_result_that_is_being_built_stays(root):
    alone = entry_of(root, "other", "last")
    shutil.rmtree(root / "runs/other")
    (item,) = going(root)
    arguments = [sys.executable, "-c", HOLD, str(root / "store"), alone.name]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert [one.keep for one in survey(root) if one.folder.name == alone.name] == ["in use"]
        assert not remove(item, root)  # found before it was taken
        process.kill()
    assert alone.exists()
    assert remove(item, root)


def test_a_run_that_came_in_between_gets_it_back(root):
    alone = entry_of(root, "other", "last")
    run = root / "runs/other"
    run.rename(root / "elsewhere")
    (root / "elsewhere/plan.json").rename(root / "plan-of-it")
    (item,) = going(root)
    run.mkdir()
    (root / "plan-of-it").rename(run / "plan.json")
    assert not remove(item, root)
    assert (alone / "artifact.json").exists()
    assert not list((root / "store/.old").iterdir())


def test_a_stopped_stage_stays_while_a_run_would_go_on_from_it(root):
    stopped = Notes(root, "stopped")
    stage = stopped.add("stopped", text="stopped", fail=True)
    assert stopped.run() == 1
    name = f"note-{stage.fingerprint}"
    (item,) = [one for one in survey(root) if one.folder.name == name]
    assert item.what == "stopped, stopped at step 1"
    assert item.keep == "runs/stopped would go on from it; --unfinished gives it up"
    assert names(going(root, unfinished=True)) == [name]
    shutil.rmtree(root / "runs/stopped")
    assert names(going(root)) == [name]  # no run would
    (item,) = going(root)
    with store.rank_at_work(item.folder):
        assert [one.keep for one in survey(root) if one.folder.name == name] == ["in use"]
        assert not remove(item, root)
    assert remove(item, root)
    assert not item.folder.exists()


def test_leftovers_and_replaced_results_go(root):
    plain = entry_of(root, "plain", "last")
    leftover = root / "store/.partial" / plain.name  # of a stage that a run needs, but nothing to resume
    leftover.mkdir()
    (leftover / "job.json").write_text(json.dumps({"stage": "last"}))
    replaced = root / "store/.old" / f"{plain.name}.1"
    shutil.copytree(plain, replaced)
    items = going(root)
    assert [item.what for item in items] == ["last, nothing to resume", "replaced by a rebuild"]
    assert all(remove(item, root) for item in items)
    assert not leftover.exists() and not replaced.exists() and plain.exists()
    assert not list((root / "store/.old").iterdir())


def test_nothing_is_judged_where_a_run_cannot_be_read(root):
    (root / "runs/other/plan.json").write_text("{")
    with pytest.raises(Refused, match="cannot be read -> remove that run's folder"):
        survey(root)


def test_a_folder_without_a_store(tmp_path):
    with pytest.raises(Refused, match="has no store -> write --output-dir"):
        survey(tmp_path)
