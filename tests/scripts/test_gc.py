"""Dry by default, and what it says."""

from __future__ import annotations

import shutil
import sys

import pytest

from scripts import gc as script
from tests.pipeline.notes import chain


def ask(monkeypatch, capsys, *arguments) -> tuple[int, list[str], str]:
    monkeypatch.setattr(sys, "argv", ["gc.py", *map(str, arguments)])
    status = script.main()
    said = capsys.readouterr()
    return status, said.out.splitlines(), said.err


@pytest.fixture
def root(tmp_path):
    assert chain(tmp_path, "plain").run() == 0
    assert chain(tmp_path, "other", last="others").run() == 0
    shutil.rmtree(tmp_path / "runs/other")
    return tmp_path


def test_it_tells_first_and_does_it_when_asked(monkeypatch, capsys, root):
    capsys.readouterr()
    before = sorted(root.rglob("*"))
    status, lines, _ = ask(monkeypatch, capsys, "--output-dir", root)
    assert status == 0
    assert lines[1].startswith("keep    3 results, 0.0 MB, that 1 runs need")
    assert lines[2].startswith("remove  note-")
    assert lines[3] == "would remove 1 of 4, 0.0 MB: add --delete to do it"
    assert sorted(root.rglob("*")) == before

    status, lines, _ = ask(monkeypatch, capsys, "--output-dir", root, "--delete")
    assert (status, lines[-1]) == (0, "removed 1 of 4, 0.0 MB")
    status, lines, _ = ask(monkeypatch, capsys, "--output-dir", root, "--delete", "--all")
    assert (len(lines), lines[-1]) == (6, "nothing to remove")
    assert lines[2].endswith("(needed by runs/plain)")


def test_bad_input_is_one_line(monkeypatch, capsys, tmp_path):
    status, lines, err = ask(monkeypatch, capsys, "--output-dir", tmp_path / "nowhere")
    assert (status, lines) == (2, [])
    assert err == f"{tmp_path / 'nowhere'}: has no store -> write --output-dir FOLDER, the output_dir of your runs\n"
