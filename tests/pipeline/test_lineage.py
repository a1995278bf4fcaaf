"""What a folder knows of how it came about: wherever it lies, and without changing what it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import store
from pipeline.lineage import LINEAGE, Lineage, Origin, lineage_of, save
from tests.pipeline.notes import Notes, chain


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Notes:
    root = tmp_path_factory.mktemp("finished")
    (root / "words.txt").write_text("one two")
    notes = chain(root, path=str(root / "words.txt"), seed=3)
    assert notes.run() == 0
    return notes


def known(path: Path) -> Lineage:
    lineage = lineage_of(path)
    assert lineage is not None
    return lineage


def names(lineage: Lineage) -> dict[str, dict[str, str]]:
    """stage -> port -> what made its input."""
    return {
        record.stage: {port: maker.stage for port, at in record.inputs.items() if (maker := lineage.maker(at))}
        for record in lineage.records
    }


WHOLE = {"last": {"before": "middle", "beside": "first"}, "middle": {"before": "first"}, "first": {}}


def test_an_output_knows_everything_before_it(finished):
    lineage = known(finished.result("last") / "rows")
    assert names(lineage) == WHOLE
    assert (lineage.own.stage, lineage.output) == ("last", "rows")
    first = next(record for record in lineage.records if record.stage == "first")
    assert (first.seed, first.config["text"], first.git) == (3, "first", lineage.own.git)
    assert lineage.own.inputs["before"].wired == "middle.rows"
    assert lineage.port(lineage.own.inputs["before"]) == "rows"


def test_a_result_that_copied_what_it_read_is_not_its_own_maker(finished):
    original = known(finished.result("first") / "rows").own
    (digest,) = {output["digest"] for port, output in original.outputs.items() if port == "rows"}
    copied = Origin("path:elsewhere", "e" * 16, digest)
    copy = replace(original, stage="copy", fingerprint="f" * 16, inputs={}, files={"model.name_or_path": copied})
    lineage = Lineage("rows", digest, [copy, original])
    assert lineage.maker(copied) is original
    assert lineage.maker(Origin("copy.rows", copy.fingerprint, digest)) is copy
    assert Lineage("rows", digest, [copy]).maker(copied) is None


def test_it_is_no_part_of_the_content(finished):
    folder = finished.result("last") / "rows"
    manifest = json.loads((finished.result("last") / "artifact.json").read_text())
    assert lineage_of(folder).digest == manifest["outputs"]["rows"]["digest"] == store.digest_folder(folder)
    # load_dataset would read it beside results.jsonl
    assert not (finished.result("last") / "ledger" / LINEAGE).exists()


def test_a_copy_elsewhere_still_knows(finished, tmp_path):
    shutil.copytree(finished.result("last") / "rows", tmp_path / "copy")
    assert names(known(tmp_path / "copy")) == WHOLE
    assert store.digest_folder(tmp_path / "copy") == known(tmp_path / "copy").digest


def test_a_result_sealed_without_one_is_read_from_its_store(finished, tmp_path):
    """As all were, once."""
    root = tmp_path / "root"
    shutil.copytree(finished.root, root, symlinks=True)
    for file in root.glob(f"store/*/*/{LINEAGE}"):
        file.unlink()
    stages = root / "runs/run/stages"
    assert names(known(stages / "last" / "rows")) == names(known(stages / "last")) == WHOLE
    shutil.rmtree((stages / "middle").resolve())
    lineage = known(stages / "last")
    assert names(lineage) == {"last": {"beside": "first"}, "first": {}}
    assert lineage.maker(lineage.own.inputs["before"]) is None


def test_local_files_count_by_their_content(finished):
    first = known(finished.result("first")).own
    expected = store.hashlib.sha256(b"one two").hexdigest()
    assert (first.files["path"].wired, first.files["path"].digest) == (first.config["path"], expected)


def test_a_moved_folder_as_an_input_brings_its_past_along(finished, tmp_path):
    shutil.copytree(finished.result("last") / "rows", tmp_path / "copy")
    other = Notes(tmp_path / "other")
    other.add("more", text="more", inputs={"before": f"path:{tmp_path / 'copy'}"})
    assert other.run() == 0
    lineage = known(other.result("more") / "rows")
    assert names(lineage) == {"more": {"before": "last"}, **WHOLE}
    assert lineage.own.inputs["before"].wired == f"path:{tmp_path / 'copy'}"

    changed = Lineage("rows", "another digest", known(tmp_path / "copy").records)
    (tmp_path / "copy" / "README.md").write_text("a file more, as an export has")
    save(tmp_path / "copy", changed)
    other = Notes(tmp_path / "third")
    other.add("more", text="more", inputs={"before": f"path:{tmp_path / 'copy'}"})
    assert other.run() == 0
    assert names(known(other.result("more") / "rows")) == {"more": {"before": "last"}, **WHOLE}


def test_equal_results_have_equal_files(finished, tmp_path):
    """No clock values: whoever compares two runs file by file finds them the same."""
    again = chain(tmp_path / "again", path=str(finished.root / "words.txt"), seed=3)
    assert again.run() == 0
    for stage in ("first", "last"):
        file = Path("rows") / LINEAGE
        assert (again.result(stage) / file).read_bytes() == (finished.result(stage) / file).read_bytes()


def test_a_rebuilt_input_does_not_rewrite_the_past(tmp_path):
    """A forced result came out otherwise: what was made from the old one still tells of the old one."""
    (tmp_path / "words.txt").write_text("one")
    notes = chain(tmp_path)
    assert notes.run() == 0
    before = known(notes.result("last"))
    entry = notes.result("first").resolve()
    rebuilt = json.loads((entry / "artifact.json").read_text())
    rebuilt["outputs"]["rows"]["digest"] = "another"
    (entry / "artifact.json").write_text(json.dumps(rebuilt))
    assert names(known(notes.result("last"))) == names(before)


def test_a_folder_that_knows_nothing(tmp_path):
    (tmp_path / "model").mkdir()
    assert lineage_of(tmp_path / "model") is None


def test_a_data_set_opens_as_before(finished, tmp_path):
    from datasets import load_dataset

    rows = load_dataset(str(finished.result("last") / "rows"), cache_dir=str(tmp_path))["train"]
    assert [row["messages"][0]["content"] for row in rows][:2] == ["last", "middle"]
    assert rows.column_names == ["messages", "seed"]
