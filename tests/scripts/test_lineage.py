"""The tree that people see."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from scripts import lineage as script
from tests.pipeline.notes import Notes, chain


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Notes:
    notes = chain(tmp_path_factory.mktemp("finished"), seed=3)
    assert notes.run() == 0
    return notes


def ask(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["lineage.py", *map(str, arguments)])
    status = script.main()
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_tree(monkeypatch, capsys, finished, tmp_path):
    first, middle, last = (stage.fingerprint for stage in finished.stages)
    shutil.copytree(finished.result("last") / "rows", tmp_path / "copy")
    for place in (finished.result("last") / "rows", finished.result("last").resolve() / "rows", tmp_path / "copy"):
        status, out, _ = ask(monkeypatch, capsys, place)
        lines = out.splitlines()
        assert status == 0
        assert lines[0].startswith("rows: dataset:conversations, digest ") and lines[0].endswith(", 4 rows")
        assert lines[1].startswith(f"last  note-{last}  seed 0  commit ")
        assert lines[2].startswith(f"├─ before: middle.rows  note-{middle}  seed 0  commit ")
        assert lines[3].startswith(f"│  └─ before: first.rows  note-{first}  seed 3  commit ")
        assert lines[4] == "└─ beside: first.rows  (as above)"
    status, out, _ = ask(monkeypatch, capsys, finished.result("last"))
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["rows", "ledger"]


def test_check_reads_the_content(monkeypatch, capsys, finished, tmp_path):
    shutil.copytree(finished.result("last") / "rows", tmp_path / "copy")
    assert ask(monkeypatch, capsys, "--check", tmp_path / "copy")[0] == 0
    assert ask(monkeypatch, capsys, "--check", finished.result("last"))[0] == 0
    with (tmp_path / "copy/train.jsonl").open("a") as file:
        file.write("{}\n")
    status, out, _ = ask(monkeypatch, capsys, "--check", tmp_path / "copy")
    assert (status, out.splitlines()[-1]) == (1, "CHANGED since it was sealed: rows")


def test_json_is_the_records(monkeypatch, capsys, finished):
    _, out, _ = ask(monkeypatch, capsys, "--json", finished.result("last"))
    assert {record["stage"] for record in json.loads(out)["records"]} == {"first", "middle", "last"}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("runs/run/stages/lost", "there is no 'lost' in {root}/runs/run/stages -> write {root}/runs/run/stages/last"),
        ("runs/run", "is a whole run -> name one of its stages: {root}/runs/run/stages/last (there are: first, mid"),
        ("runs/run/stages", "holds neither a lineage.json nor a result of a store -> name outputs/runs/RUN/stages"),
    ],
)
def test_what_has_no_lineage_is_refused_in_one_line(monkeypatch, capsys, finished, path, says):
    status, out, err = ask(monkeypatch, capsys, finished.root / path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says.format(root=finished.root) in err
