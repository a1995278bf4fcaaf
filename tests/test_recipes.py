"""Recipes that reuse each other's results, from end to end at the size of experiment=smoke, in one store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTIONS = {
    "qwen3_small": ("Thinking modes", "Thinking budget", "Preference rewards", "Ways to teach a student"),
    "distillation_study": ("Ways to teach a student", "Exposure bias"),
    "r1_style": ("Preference rewards",),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outputs")


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", SECTIONS)
def test_a_smoke_run_ends_with_a_report_of_what_the_recipe_is_about(pipeline: str, outputs: Path) -> None:
    command = [sys.executable, "run.py", f"pipeline={pipeline}", "experiment=smoke", f"output_dir={outputs}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    run = outputs / "runs" / f"{pipeline}-smoke"
    stages = json.loads((run / "summary.json").read_text())["stages"]
    assert {stage["status"] for stage in stages} <= {"ran", "cached"}
    report = (run / "report.html").read_text()
    assert [heading for heading in SECTIONS[pipeline] if f">{heading}<" not in report] == []
