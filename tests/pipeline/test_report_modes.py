"""The report's tables of modes and budgets, from the rows of evaluations."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.report.load import load_run
from pipeline.report.modes import budgets, modes


def write_run(folder: Path, with_modes: bool = True) -> Path:
    """cold_start answers 1 of 4 at once; general_rl 3 of 4 without thinking, obeying always."""
    figures = {"cold_start": {"at_once": 1, "no_thinking": 0}, "general_rl": {"at_once": 2, "no_thinking": 3}}
    stages = []
    for name, right in figures.items():
        stages += [{"name": name, "kind": "sft"}, {"name": f"{name}.eval", "kind": "evaluate"}]
        results = folder / "stages" / f"{name}.eval" / "results"
        results.mkdir(parents=True)
        rows = []
        for setting, count in {**right, "thinking": 4, "budget_8": 2, "budget_16": 4}.items():
            for i in range(4):
                obeyed = int(setting != "no_thinking" or name == "general_rl")
                row = {"setting": setting, "pattern": "line", "suite": "reasoning", "problem_id": str(i)}
                right = {"n": 1, "c": int(i < count), "direct": int(i < count)}
                rows.append(row | right | {"samples": 1, "obeyed": obeyed, "tokens": 10})
        if with_modes:
            (results / "modes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plan.json").write_text(json.dumps({"stages": stages}))
    return folder


def test_modes_are_told_model_by_model(tmp_path):
    told = modes(load_run(write_run(tmp_path)))
    assert "Thinking modes" in told and "<b>75.0</b>" in told
    assert "general_rl: <b>+50.0</b> points" in told  # 3 of 4 against cold_start's 1 of 4
    assert "cold_start's answers given at once" in told


def test_the_curve_against_budget(tmp_path):
    told = budgets(load_run(write_run(tmp_path)))
    assert "Accuracy against thinking budget, reasoning" in told and "<svg" in told
    assert "50.0 <small>10 tokens</small>" in told and "16 tokens" in told


def test_a_run_without_them_has_no_such_sections(tmp_path):
    run = load_run(write_run(tmp_path, with_modes=False))
    assert modes(run) == budgets(run) == ""
