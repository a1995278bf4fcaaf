"""Stages from one model side by side: what differs between them is found, not told."""

from __future__ import annotations

from pathlib import Path

import yaml

from pipeline.report.load import load_run
from pipeline.report.siblings import differences, siblings
from tests.pipeline.test_report_critic import write_run


def test_settings_that_differ_are_named_with_their_values():
    one = {"supervision": "outcome", "algorithm": {"beta": 0.1, "name": "grpo"}}
    other = {"supervision": "process", "algorithm": {"beta": 0.1, "name": "grpo"}}
    assert differences([one, other]) == [["supervision outcome"], ["supervision process"]]
    assert differences([one, one]) == [[], []]


def write_two(folder: Path) -> Path:
    """The run of the other comparison with its second stage an `rl` too."""
    write_run(folder, "cold_start")
    plan = (folder / "plan.json").read_text().replace('"kind": "ppo"', '"kind": "rl"')
    (folder / "plan.json").write_text(plan)
    for name, supervision in (("grpo", "outcome"), ("ppo", "process")):
        (folder / "stages" / name / "config.yaml").write_text(yaml.safe_dump({"supervision": supervision, "steps": 4}))
    return folder


def test_two_stages_from_one_model_are_compared(tmp_path):
    told = siblings(load_run(write_two(tmp_path)))
    assert "from cold_start" in told
    assert "supervision outcome" in told and "supervision process" in told and "steps" not in told.split("</thead>")[1]
    assert "ppo against grpo, reasoning: <b>+25.0</b> points" in told


def test_one_stage_alone_is_not(tmp_path):
    assert siblings(load_run(write_run(tmp_path, "cold_start"))) == ""
