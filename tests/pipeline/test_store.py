"""Rules of the store: sealed at once or not at all, one builder an entry, digests that see content only."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline import store
from pipeline.artifacts import Interrupted

KEY = ("count", "abc")
HOLD = """
import sys, threading, time
from pathlib import Path
from pipeline import store
with store.locked(Path(sys.argv[1]), "count", "abc", print, threading.Event()):
    print("held", flush=True)
    time.sleep(600)
"""


def manifest(created: str = "2026-01-01", inputs: dict | None = None) -> dict:
    outputs = {"total": {"kind": "metrics", "path": "total", "digest": "d"}}
    inputs = {port: {"fingerprint": "f", "digest": digest} for port, digest in (inputs or {}).items()}
    return {"inputs": inputs, "outputs": outputs, "created": created}


def fill(folder: Path, text: str = "one") -> None:
    (folder / "total").mkdir(parents=True)
    (folder / "total" / "total.json").write_text(text)


def publish(root: Path, text: str, created: str = "2026-01-01") -> Path:
    folder, _ = store.open_partial(root, *KEY, {}, ["total"])
    fill(folder, text)
    store.seal(folder, manifest(created))
    return store.publish(root, *KEY)


def test_digest_sees_names_and_contents_but_not_times(tmp_path):
    for name in ("first", "second"):
        fill(tmp_path / name)
    os.utime(tmp_path / "second/total/total.json", (0, 0))
    assert store.digest_folder(tmp_path / "first") == store.digest_folder(tmp_path / "second")
    (tmp_path / "second/total/total.json").write_text("two")
    assert store.digest_folder(tmp_path / "first") != store.digest_folder(tmp_path / "second")
    (tmp_path / "second/total/total.json").write_text("one")
    (tmp_path / "second/total/total.json").rename(tmp_path / "second/total/other.json")
    assert store.digest_folder(tmp_path / "first") != store.digest_folder(tmp_path / "second")


def test_nothing_is_there_until_it_is_sealed(tmp_path):
    folder, resumed = store.open_partial(tmp_path, *KEY, {}, ["total"])
    fill(folder)
    assert not resumed
    assert store.read_manifest(tmp_path, *KEY) is None
    store.seal(folder, manifest())
    assert store.read_manifest(tmp_path, *KEY) is None
    store.publish(tmp_path, *KEY)
    assert store.read_manifest(tmp_path, *KEY) == manifest()
    assert not folder.exists()


def test_an_entry_without_its_output_does_not_count(tmp_path):
    entry = publish(tmp_path, "one")
    (entry / "total/total.json").unlink()
    (entry / "total").rmdir()
    assert store.read_manifest(tmp_path, *KEY) is None


def test_a_manifest_that_was_damaged_does_not_count_and_is_replaced(tmp_path):
    entry = publish(tmp_path, "one")
    (entry / store.MANIFEST).write_text('{"kind": "cou')
    assert store.read_manifest(tmp_path, *KEY) is None
    assert not store.finish_earlier(tmp_path, *KEY, {}, rebuild=False)
    publish(tmp_path, "two")
    assert store.read_manifest(tmp_path, *KEY) == manifest()


def test_current_means_todays_input_digests():
    assert store.is_current(manifest(inputs={"before": "d1"}), {"before": "d1"})
    assert not store.is_current(manifest(inputs={"before": "d1"}), {"before": "d2"})
    assert not store.is_current(manifest(inputs={"before": "d1"}), {})


def test_partial_keeps_checkpoints_and_drops_half_written_outputs(tmp_path):
    folder, _ = store.open_partial(tmp_path, *KEY, {"before": "d1"}, ["total"])
    (folder / "job.json").write_text(json.dumps({"inputs": {"before": {"digest": "d1"}}}))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/step").write_text("3")
    (folder / "metrics.jsonl").write_text("{}\n")
    fill(folder, "half")
    again, resumed = store.open_partial(tmp_path, *KEY, {"before": "d1"}, ["total"])
    assert (again, resumed) == (folder, True)
    assert sorted(path.name for path in folder.iterdir() if path.name not in store.SCRATCH) == [
        "checkpoints",
        "metrics.jsonl",
    ]

    _, resumed = store.open_partial(tmp_path, *KEY, {"before": "other"}, ["total"])  # the input was rebuilt
    assert not resumed
    assert list(folder.iterdir()) == []


def test_without_a_checkpoint_the_attempt_starts_from_nothing(tmp_path):
    folder, _ = store.open_partial(tmp_path, *KEY, {}, ["total"])
    (folder / "job.json").write_text(json.dumps({"inputs": {}}))
    (folder / "metrics.jsonl").write_text("{}\n")
    _, resumed = store.open_partial(tmp_path, *KEY, {}, ["total"])
    assert not resumed
    assert list(folder.iterdir()) == []


def test_rebuilt_entry_is_swapped_in_and_the_old_one_kept(tmp_path):
    publish(tmp_path, "one")
    entry = publish(tmp_path, "two")
    publish(tmp_path, "three")
    assert (entry / "total/total.json").read_text() == "three"
    kept = [(tmp_path / ".old" / f"count-abc.{n}/total/total.json").read_text() for n in (1, 2)]
    assert kept == ["one", "two"]
    assert not store.partial_path(tmp_path, *KEY).exists()


def test_readers_never_miss_an_entry_that_is_swapped(tmp_path):
    entry, missed, done = publish(tmp_path, "0"), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            if not (entry / store.MANIFEST).exists():
                missed.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        publish(tmp_path, str(number))
    done.set()
    reader.join()
    assert not missed


@pytest.mark.parametrize(
    ("entry", "partial", "rebuild", "published", "text"),
    [
        (None, "2026-01-02", False, True, "new"),  # died between sealing and publishing
        ("2026-01-01", "2026-01-02", True, True, "new"),  # the same, of a forced rebuild
        ("2026-01-01", "2026-01-02", False, False, "old"),  # the rebuild is no longer asked for
        ("2026-01-03", "2026-01-02", True, False, "old"),  # died after the swap: the partial is what was replaced
    ],
)
def test_a_sealed_partial_of_a_dead_driver_is_dealt_with(tmp_path, entry, partial, rebuild, published, text):
    if entry is not None:
        publish(tmp_path, "old", entry)
    folder, _ = store.open_partial(tmp_path, *KEY, {}, ["total"])
    fill(folder, "new")
    store.seal(folder, manifest(partial))
    assert store.finish_earlier(tmp_path, *KEY, {}, rebuild) is published
    assert (store.entry_path(tmp_path, *KEY) / "total/total.json").read_text() == text
    assert not folder.exists()


def test_a_sealed_partial_of_other_inputs_is_not_published(tmp_path):
    folder, _ = store.open_partial(tmp_path, *KEY, {}, ["total"])
    fill(folder)
    store.seal(folder, manifest(inputs={"before": "d1"}))
    assert not store.finish_earlier(tmp_path, *KEY, {"before": "d2"}, False)
    assert store.read_manifest(tmp_path, *KEY) is None


def test_lock_is_held_by_one_process_and_freed_by_its_death(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    told: list[str] = []
    threading.Timer(0.5, holder.kill).start()
    began = time.monotonic()
    with store.locked(tmp_path, *KEY, told.append, threading.Event()):
        waited = time.monotonic() - began
    holder.wait()
    assert waited > 0.4
    assert told == [f"process {holder.pid} on {os.uname().nodename}"]


def test_a_stop_request_ends_the_wait_for_a_lock(tmp_path):
    stop = threading.Event()
    with store.locked(tmp_path, *KEY, print, stop):
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(Interrupted), store.locked(tmp_path, *KEY, print, stop):
            pass


def test_no_new_attempt_beside_ranks_of_an_earlier_one(tmp_path):
    folder, _ = store.open_partial(tmp_path, *KEY, {}, ["total"])
    with store.rank_at_work(folder), pytest.raises(OSError, match="still work"):
        store.await_ranks(folder, seconds=0.2)
    store.await_ranks(folder, seconds=0.2)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    store.write_json(path, {"status": "old"})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write_json(path, {"status": "new"})
    assert json.loads(path.read_text()) == {"status": "old"}
    assert [one.name for one in tmp_path.iterdir()] == ["summary.json"]


def test_locks_are_flocks_of_files_that_stay(tmp_path):
    with store.locked(tmp_path, *KEY, print, threading.Event()):
        file = (tmp_path / ".locks" / "count-abc").open()
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.close()


def test_checkpoints_of_before_recipes_were_recorded_are_gone_on_from(tmp_path):
    folder, _ = store.open_partial(tmp_path, *KEY, {}, ["total"])
    (folder / "checkpoints" / "step-00000020").mkdir(parents=True)
    assert store.unfinished(tmp_path, *KEY) is None
    for job, writer in (({}, "abc"), ({"fingerprint": ""}, "abc"), ({"fingerprint": "other"}, "other")):
        (folder / "job.json").write_text(json.dumps({"inputs": {}, **job}))
        assert store.unfinished(tmp_path, *KEY) == (20, writer)
