"""The table of several seeds, from runs whose evaluations are counted by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import seeds as script


def write_run(folder: Path, name: str, seed: int, counts: list[int], ks: list[int], samples: int) -> Path:
    """A run of one model, `base`, that answered one reasoning problem a count right so many times."""
    evaluation = folder / "stages" / "base.eval"
    (evaluation / "results").mkdir(parents=True)
    rows = [{"problem_id": str(i), "suite": "reasoning", "n": samples, "c": c} for i, c in enumerate(counts)]
    (evaluation / "results" / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "stages" / "base").mkdir()
    (folder / "stages" / "base" / "artifact.json").write_text(json.dumps({"seed": seed}))
    stages = [{"name": "base"}, {"name": "base.eval", "metrics": {f"reasoning/pass@{k}": 0.5 for k in ks}}]
    (folder / "summary.json").write_text(json.dumps({"name": name, "seconds": 60.0, "stages": stages}))
    return folder


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *runs: Path) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["seeds.py", *map(str, runs)])
    assert script.main() == 0
    return capsys.readouterr().out.splitlines()


def test_the_largest_k_that_every_run_has(monkeypatch, capsys, tmp_path) -> None:
    wide = write_run(tmp_path / "wide", "wide", 0, [1, 7], [1, 8], samples=8)
    narrow = write_run(tmp_path / "narrow", "narrow", 0, [0, 1], [1, 2], samples=2)
    lines = ask(monkeypatch, capsys, narrow, wide)
    assert "**reasoning**, test accuracy: pass@1 (pass@2)" in lines
    # narrow: (0 + 1/2) / 2; (0 + 1) / 2.  wide: (1/8 + 7/8) / 2; 1 - C(7,2)/C(8,2) = 1/4 and 1, of which the mean
    assert "| base | 25.0 (50.0) | 50.0 (62.5) |" in lines
    single = write_run(tmp_path / "single", "single", 0, [1, 0], [1], samples=1)
    lines = ask(monkeypatch, capsys, single)
    assert "**reasoning**, test accuracy: pass@1" in lines and "| base | 50.0 |" in lines


def test_runs_of_one_name_have_different_headings(monkeypatch, capsys, tmp_path) -> None:
    first, second, again = (
        write_run(tmp_path / folder, "run", seed, [1], [1], 1) for folder, seed in (("a", 0), ("b", 1), ("c", 1))
    )
    assert "| model | run, seed 0 | run, seed 1 |" in ask(monkeypatch, capsys, first, second)
    assert f"| model | {second} | {again} |" in ask(monkeypatch, capsys, second, again)
