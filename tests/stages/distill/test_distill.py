"""Output distillation: the loop of sft on a student, and the check that teacher and student read the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context
from stages.distill.config import DistillConfig, outline, vocabulary_faults
from stages.distill.run import run
from stages.parts.policy.model import load_policy
from tests.stages.sft.stage import make_inputs


def inputs_of(root):
    inputs = make_inputs(root)
    return {"student": replace(inputs["policy"], port="student"), "data": inputs["data"], "general": inputs["general"]}


def distill(root, workdir, inputs=None):
    workdir.mkdir(parents=True, exist_ok=True)
    cfg = DistillConfig(seed=0, steps=6, learning_rate=1e-2, examples_per_step=8, max_tokens=96, dtype="float32")
    context = Context(stage="distillation", workdir=workdir, seed=0)
    return run(cfg, inputs or inputs_of(root), context), context


def test_the_student_learns(tmp_path):
    metrics, context = distill(tmp_path, tmp_path / "stage")
    first = (tmp_path / "stage" / "metrics.jsonl").read_text().splitlines()[0]
    assert metrics["train/loss"] < 0.8 * float(first.split('"train/loss": ')[1].split(",")[0])
    assert metrics["train/steps"] == 6 and context.facts["model"]["adapter"] is False
    load_policy(tmp_path / "stage" / "model", "float32")


def test_a_teacher_of_the_same_tokenizer_is_accepted_and_another_is_not(tmp_path):
    inputs = inputs_of(tmp_path)
    inputs["teacher"] = replace(inputs["student"], port="teacher")
    distill(tmp_path, tmp_path / "stage", inputs)
    other = tmp_path / "other"
    other.mkdir()
    text = (tmp_path / "policy" / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<think>", "<thought>"))
    inputs["teacher"] = replace(inputs["teacher"], path=other)
    with pytest.raises(StageFailed, match=r"the teacher's tokenizer .* is not the student's"):
        distill(tmp_path, tmp_path / "again", inputs)


def test_the_plan_compares_what_is_declared():
    student = {"tokenizer_hash": "a", "vocab_size": 151936}
    assert vocabulary_faults(student, {"tokenizer_hash": "a", "vocab_size": 152064}) == []  # padded rows differ: fine
    assert vocabulary_faults(student, {}) == []  # not known yet: the stage checks the folders
    wired = {"student": student, "data": {"rows": 1}, "teacher": {"tokenizer_hash": "b"}}
    assert [fault.key for fault in outline(DistillConfig(seed=0), wired).faults] == ["inputs.teacher"]
    empty = outline(DistillConfig(seed=0), {"student": student, "data": {"rows": 0}})
    assert [fault.key for fault in empty.faults] == ["inputs.data"]
