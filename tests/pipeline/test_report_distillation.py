"""The report's comparison of ways to teach a student: whole chains, the teacher's part, and exposure bias."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.report.distillation import distillation
from pipeline.report.load import load_run

MODEL = {"outputs": {"model": {"kind": "model"}}}
# stage: kind, inputs, seconds, metrics, right answers of four (None: not evaluated)
STAGES = {
    "base": ("base_model", {}, 100.0, {}, None),
    "judge": ("reward_model", {"policy": "base.model"}, 20.0, {}, None),
    "teacher": ("rl", {"policy": "base.model", "reward_model": "judge.model"}, 50.0, {}, None),
    "sampling": ("sample", {"policy": "teacher.model"}, 7.0, {"sampled/tokens": 4000.0}, None),
    "logits": ("teacher_logits", {"teacher": "teacher.model", "data": "sampling.kept"}, 3.0,
               {"teacher/total_tokens": 900.0, "logits/bytes": 1.5 * 2**20, "logits/share_of_full": 0.25,
                "error/tail_mass": 0.003, "error/divergence": 0.002}, None),
    "student": ("base_model", {}, 60.0, {}, 0),
    "output": ("distill", {"student": "student.model", "data": "sampling.kept"}, 10.0, {}, 1),
    "stored": ("distill", {"student": "student.model", "data": "sampling.kept", "teacher_logits": "logits.logits"},
               11.0, {"teacher/total_tokens": 0.0}, 2),
    "own": ("on_policy_distill", {"student": "output.model", "teacher": "teacher.model"}, 5.0,
            {"teacher/total_tokens": 2500.0}, 4),
    "alone": ("rl", {"policy": "student.model"}, 30.0, {}, 2),
    "own_exposure": ("exposure_bias", {"student": "own.model", "teacher": "teacher.model"}, 1.0,
                     {"exposure/own_forward_kl": 0.5, "exposure/teacher_forward_kl": 0.125,
                      "exposure/forward_kl_gap": 0.375, "exposure/forward_kl_gap_low": 0.25,
                      "exposure/forward_kl_gap_high": 0.4375}, None),
}  # fmt: skip


def write_run(folder: Path, leave_out: tuple[str, ...] = ()) -> Path:
    stages = []
    for name, (kind, inputs, seconds, metrics, right) in STAGES.items():
        if name in leave_out:
            continue
        stages.append({"name": name, "kind": kind, "inputs": inputs})
        entry = folder / "stages" / name
        entry.mkdir(parents=True)
        made = {} if kind in ("sample", "teacher_logits", "exposure_bias") else MODEL
        (entry / "artifact.json").write_text(json.dumps({"seconds": seconds, "metrics": metrics, **made}))
        if right is not None:
            stages.append({"name": f"{name}.eval", "kind": "evaluate", "inputs": {"model": f"{name}.model"}})
            results = folder / "stages" / f"{name}.eval" / "results"
            results.mkdir(parents=True)
            rows = [{"suite": "reasoning", "problem_id": str(i), "n": 2, "c": int(i < right)} for i in range(4)]
            (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plan.json").write_text(json.dumps({"stages": stages}))
    return folder


@pytest.fixture
def told(tmp_path) -> str:
    return distillation(load_run(write_run(tmp_path)))


def row_of(told: str, way: str) -> list[str]:
    (line,) = [line for line in told.splitlines() if line.startswith("<tr>") and f"{way} <small>" in line]
    return [cell.partition("</td>")[0] for cell in line.split("<td>")[1:]]


def test_costs_are_those_of_the_whole_chain_with_the_teachers_part(told):
    *_, time, with_teacher, generated, read = row_of(told, "output → own")
    assert (time, with_teacher, generated, read) == ("15 s", "22 s", "4,000", "2,500")
    *_, time, with_teacher, generated, read = row_of(told, "stored")
    assert (time, with_teacher, generated, read) == ("11 s", "21 s", "4,000", "900")
    *_, time, with_teacher, generated, read = row_of(told, "alone")
    assert (time, with_teacher, generated, read) == ("30 s", "–", "0", "0")


def test_accuracy_and_pass_at_k(told):
    """One of two responses right in all four problems: pass@1 50, pass@2 100."""
    pass_1, pass_2, *_ = row_of(told, "output → own")
    assert pass_1.startswith("<b>50.0</b>") and pass_2.startswith("<b>100.0</b>")


def test_every_way_is_compared_with_rl_alone(told):
    (line,) = [item for item in told.split("<li>") if item.startswith("own:")]
    assert "pass@1 <b>+25.0</b>" in line and "pass@2 <b>+50.0</b>" in line
    assert "0.50× the time, 0.73× with the teacher" in line
    assert "The teacher teacher took <b>2 min 50 s</b> to make (base, judge, teacher)." in told


def test_exposure_bias_is_told(told):
    assert "<b>0.375</b> <small>0.25 … 0.4375</small>" in told and "<td>0.125</td>" in told


def test_what_stored_probabilities_take_and_lose_is_told(told):
    assert "logits takes 1.50 MiB, <b>25.0%</b> of full logits; what it leaves out has 0.30%" in told
    assert "told within 0.002 nats a token" in told


def test_a_run_without_a_teachers_probabilities_has_no_such_section(tmp_path):
    assert distillation(load_run(write_run(tmp_path, leave_out=("logits", "stored", "own", "own_exposure")))) == ""


def test_without_rl_alone_the_table_stands_by_itself(tmp_path):
    told = distillation(load_run(write_run(tmp_path, leave_out=("alone",))))
    assert "Against RL alone" not in told and row_of(told, "stored")


def test_results_that_are_older_than_the_count_of_tokens(tmp_path):
    run = write_run(tmp_path)
    (run / "stages" / "sampling" / "artifact.json").write_text(json.dumps({"seconds": 7.0, "metrics": {}}))
    *_, generated, read = row_of(distillation(load_run(run)), "stored")
    assert (generated, read) == ("–", "900")
