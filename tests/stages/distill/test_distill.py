"""The distill stage: text alone, a teacher's probabilities beside it, and what the plan refuses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from pipeline.artifacts import Interrupted, StageFailed
from pipeline.compose import compose
from pipeline.plan import make_plan
from pipeline.tracking import Context
from stages.distill.config import DistillConfig, outline
from stages.distill.run import run
from stages.parts.policy.model import load_policy, save_policy
from stages.parts.policy.outline import template_warnings, vocabulary_faults
from tests.stages.policy.tiny import tiny_policy
from tests.stages.sft.stage import make_inputs

SOFT = {"hard_weight": 0.2, "temperature": 2.0}


def inputs_of(root):
    inputs = make_inputs(root)
    return {"student": replace(inputs["policy"], port="student"), "data": inputs["data"], "general": inputs["general"]}


def with_teacher(root):
    """Another model of the same tokenizer; wider."""
    if not (root / "teacher").exists():
        policy = tiny_policy(3, hidden_size=48)
        policy.model.get_input_embeddings().weight.data.mul_(10)
        save_policy(root / "teacher", dict(policy.model.state_dict()), policy)
    inputs = inputs_of(root)
    return inputs | {"teacher": replace(inputs["student"], port="teacher", path=root / "teacher")}


def config(**settings):
    numbers = {"steps": 6, "learning_rate": 1e-2, "examples_per_step": 8, "max_tokens": 96, "dtype": "float32"}
    return DistillConfig(seed=0, **numbers, **settings)


def distill(root, workdir, inputs=None, context=None, **settings):
    workdir.mkdir(parents=True, exist_ok=True)
    context = context or Context(stage="distillation", workdir=workdir, seed=0)
    return run(config(**settings), inputs or inputs_of(root), context), context


def lines_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


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


def test_the_student_comes_closer_to_its_teacher(tmp_path):
    metrics, _ = distill(tmp_path, tmp_path / "stage", with_teacher(tmp_path), hard_weight=0.0, general_fraction=0.25)
    lines = lines_of(tmp_path / "stage")
    assert lines[-1]["train/divergence"] < 0.8 * lines[0]["train/divergence"]
    assert lines[0]["train/loss"] == pytest.approx(lines[0]["train/divergence"])
    assert metrics["teacher/total_tokens"] == sum(line["teacher/tokens"] for line in lines)
    assert lines[0]["teacher/tokens"] > lines[0]["train/tokens"]  # it reads the prompts too
    load_policy(tmp_path / "stage" / "model", "float32")


def test_text_alone_is_what_it_was_whatever_the_knobs_of_the_divergence(tmp_path):
    """And a teacher beside it is not even loaded: its folder holds no weights here."""
    inputs = with_teacher(tmp_path)
    plain, _ = distill(tmp_path, tmp_path / "plain", {k: v for k, v in inputs.items() if k != "teacher"})
    (tmp_path / "teacher" / "model.safetensors").unlink()
    knobs, _ = distill(tmp_path, tmp_path / "knobs", inputs, objective="jsd", temperature=3.0)
    assert plain == knobs and "teacher/total_tokens" not in plain


def test_resumed_at_every_checkpoint_it_ends_with_the_same_bits(tmp_path):
    inputs = with_teacher(tmp_path)
    whole, _ = distill(tmp_path, tmp_path / "whole", inputs, **SOFT)
    for _ in range(5):  # a step, a checkpoint and a stop each
        context = Context("distillation", tmp_path / "again", 0)
        context.stop.set()
        with pytest.raises(Interrupted):
            distill(tmp_path, tmp_path / "again", inputs, context, **SOFT)
    again, _ = distill(tmp_path, tmp_path / "again", inputs, **SOFT)
    assert again == whole and lines_of(tmp_path / "again") == lines_of(tmp_path / "whole")
    expected = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "again" / "model" / "model.safetensors").items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("hard_weight", {"hard_weight": 1.5}),
        ("hard_weight", {"hard_weight": -0.1}),
        ("hard_weight", {"hard_weight": float("nan")}),
        ("temperature", {"temperature": 0.0}),
        ("temperature", {"temperature": float("inf")}),
        ("objective", {"objective": "forward"}),
        ("jsd_weight", {"jsd_weight": 2.0}),
    ],
)
def test_faults_name_their_key(key, settings):
    (fault,) = config(**settings).faults()
    assert fault.key == key and fault.remedy


def test_the_plan_compares_what_is_declared():
    student = {"tokenizer_hash": "a", "vocab_size": 151936}
    assert vocabulary_faults(student, {"tokenizer_hash": "a", "vocab_size": 152064}) == []  # padded rows differ: fine
    assert vocabulary_faults(student, {}) == []  # not known yet: the stage checks the folders
    wired = {"student": student, "data": {"rows": 1}, "teacher": {"tokenizer_hash": "b"}}
    for hard_weight in (0.5, 1.0):
        (fault,) = outline(DistillConfig(seed=0, hard_weight=hard_weight), wired).faults
        assert fault.key == "inputs.teacher" and "hard_weight=1" in fault.remedy
    empty = outline(DistillConfig(seed=0), {"student": student, "data": {"rows": 0}})
    assert [fault.key for fault in empty.faults] == ["inputs.data"]


def test_what_a_divergence_needs():
    student = {"tokenizer_hash": "a", "end_tokens": [1, 2], "template_hash": "t"}
    wired = {"student": student, "data": {"rows": 1}}
    (fault,) = outline(config(hard_weight=0.5), wired).faults  # text has no probabilities
    assert fault.key == "hard_weight" and "output distillation" in fault.remedy
    good = {"tokenizer_hash": "a", "end_tokens": [2, 3], "template_hash": "t", "context_length": 96}
    assert outline(config(hard_weight=0.5), wired | {"teacher": good}).faults == []
    assert outline(config(hard_weight=0.5), wired | {"teacher": good}).warnings == []
    (fault,) = outline(config(hard_weight=0.5), wired | {"teacher": good | {"end_tokens": [7]}}).faults
    assert fault.key == "inputs.teacher" and "[7]" in fault.problem
    (fault,) = outline(config(hard_weight=0.5), wired | {"teacher": good | {"context_length": 95}}).faults
    assert fault.key == "max_tokens"
    assert len(template_warnings(student, {"template_hash": "other"})) == 1


def test_knobs_that_do_nothing_are_named_and_leave_the_fingerprint_alone(tmp_path):
    assert set(outline(config(), {}).inert) >= {"objective", "temperature", "jsd_weight"}
    assert set(outline(config(hard_weight=0.5), {}).inert) & {"objective", "temperature", "jsd_weight"} == {
        "jsd_weight"
    }

    base = compose([f"output_dir={tmp_path}"])
    base.stages["distillation"].inputs["teacher"] = "base.model"

    def fingerprint(**settings) -> str:
        cfg = copy.deepcopy(base)
        cfg.stages["distillation"] = replace(cfg.stages["distillation"], **settings)
        return make_plan(cfg).stage("distillation").fingerprint

    assert fingerprint() == fingerprint(temperature=2.0, objective="jsd")
    assert fingerprint(hard_weight=0.5) == fingerprint(hard_weight=0.5, jsd_weight=0.1)
    different = {fingerprint(hard_weight=h, temperature=t) for h in (0.1, 0.5) for t in (1.0, 2.0)}
    assert len(different | {fingerprint()}) == 5
