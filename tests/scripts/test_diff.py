"""What people read about two results, and the exit status that scripts read."""

from __future__ import annotations

import shutil
import sys

import pytest

from scripts import diff as script
from tests.pipeline.notes import Notes, chain


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Notes]:
    root = tmp_path_factory.mktemp("finished")
    made = {"plain": chain(root, "plain"), "seeded": chain(root, "seeded", seed=1), "short": Notes(root, "short")}
    made["short"].add("first", text="first")
    assert [notes.run() for notes in made.values()] == [0, 0, 0]
    return made


def ask(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["diff.py", *map(str, arguments)])
    status = script.main()
    said = capsys.readouterr()
    return status, said.out, said.err


def test_results_that_differ(monkeypatch, capsys, runs):
    status, out, _ = ask(monkeypatch, capsys, runs["plain"].result("last"), runs["seeded"].result("last"))
    assert status == 1
    assert "the difference begins at: first\nfirst:\n    seed: 0 -> 1\n" in out
    assert "with no change but in their inputs: middle, last" in out
    assert "last.rows:\n      train: 4 rows -> 4 rows, 2 of them the same" in out


def test_a_copy_is_the_same(monkeypatch, capsys, runs, tmp_path):
    shutil.copytree(runs["plain"].result("last") / "rows", tmp_path / "copy")
    status, out, _ = ask(monkeypatch, capsys, runs["plain"].result("last"), tmp_path / "copy")
    assert status == 0
    assert "the same content, by the same recipe" in out


def test_runs_stage_by_stage_by_path_or_name(monkeypatch, capsys, runs):
    root = runs["plain"].root
    status, out, _ = ask(monkeypatch, capsys, "--output-dir", root, "plain", runs["seeded"].folder)
    assert status == 1
    assert out.startswith(f"A  {root}/runs/plain  python run.py name=plain\nB  {root}/runs/seeded  ")
    assert "begins at: first\n" in out
    assert ask(monkeypatch, capsys, runs["plain"].folder, runs["plain"].folder)[0] == 0
    status, out, _ = ask(monkeypatch, capsys, runs["plain"].folder, runs["short"].folder)
    assert status == 1
    assert "only in A: middle, last" in out and "the same content" in out


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("plain", "plane", "plane: there is no such run -> write plain (there are: plain, seeded, short)"),
        ("plain", "{root}/runs/plain/stages/last", "plain: is a run and the other is not -> name one of its stages"),
        ("plain", "{root}/runs/gone", "there is no 'gone' in {root}/runs"),
        ("{root}/store", "{root}/runs/plain/stages/last", "holds neither a lineage.json nor a result of a store"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, runs, a, b, says):
    root = runs["plain"].root
    arguments = [written.format(root=root) for written in (a, b)]
    status, out, err = ask(monkeypatch, capsys, "--output-dir", root, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says.format(root=root) in err
