"""A teacher reads once: what is stored, what is lost, and that a student learns from it as from the teacher itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import load_dataset

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from pipeline.tracking import Context
from stages.distill.config import DistillConfig
from stages.distill.config import outline as distill_outline
from stages.distill.run import run as distill
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.template import render_conversation
from stages.parts.policy.model import load_policy, save_policy
from stages.parts.policy.stored_logits import StoredLogits, sequence_key
from stages.teacher_logits import run as stage
from stages.teacher_logits.config import TeacherLogitsConfig, outline
from tests.stages.policy.tiny import tiny_policy
from tests.stages.sft.stage import make_inputs

VOCABULARY = 264
CFG = TeacherLogitsConfig(seed=0, top_k=8, temperatures=[1.0, 2.0], max_tokens=96, dtype="float32")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict[str, Artifact]:
    """Student, teacher (of more embedding rows: padding), data and general."""
    root = tmp_path_factory.mktemp("teacher_logits")
    inputs = make_inputs(root)
    policy = tiny_policy(3, hidden_size=48, vocab_size=272)
    policy.model.get_input_embeddings().weight.data.mul_(10)
    save_policy(root / "teacher", dict(policy.model.state_dict()), policy)
    return {
        "student": replace(inputs["policy"], port="student"),
        "teacher": Artifact("teacher", "model", root / "teacher", {}, "", ""),
        "data": inputs["data"],
        "general": inputs["general"],
    }


def store(world, workdir: Path, cfg: TeacherLogitsConfig = CFG, ports=("teacher", "data", "general")):
    """(the artifact, its metrics)"""
    workdir.mkdir(parents=True, exist_ok=True)
    context = Context(stage="teacher_logits", workdir=workdir, seed=0)
    metrics = stage.run(cfg, {port: world[port] for port in ports}, context)
    artifact = Artifact("teacher_logits", "dataset:logits", workdir / "logits", context.facts["logits"], "", "")
    return artifact, metrics


def learn(world, workdir: Path, **changes):
    workdir.mkdir(parents=True, exist_ok=True)
    wired = {**world, **changes.pop("inputs")}
    cfg = DistillConfig(
        seed=0, steps=4, learning_rate=1e-2, examples_per_step=8, max_tokens=96, dtype="float32", hard_weight=0.2,
        temperature=2.0, **changes,
    )  # fmt: skip
    distill(cfg, {port: value for port, value in wired.items() if value}, Context("stage", workdir, seed=0))
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line["train/divergence"] for line in lines], lines


def test_what_is_stored_is_what_the_teacher_says(world, tmp_path):
    """Read again sequence by sequence, all logits at once, in float64."""
    artifact, _ = store(world, tmp_path)
    logits, teacher = StoredLogits(artifact.path), load_policy(world["teacher"].path, "float32")
    for row in load_conversations(world["data"].path)[:5]:
        ids, mask = render_conversation(teacher.tokenizer, row["messages"])
        stored = logits.rows(sequence_key(ids, mask))
        with torch.no_grad():
            whole = teacher.model(input_ids=torch.tensor([ids])).logits[0, :-1, :VOCABULARY]
        for place, temperature in enumerate((1.0, 2.0)):
            expected = (whole.double() / temperature).softmax(-1)[torch.tensor(mask[1:])]
            got = stored.logps(temperature, place).exp().double()
            kept = expected.gather(-1, stored.top_ids_NK)
            assert torch.allclose(got[:, :-1], kept, atol=1e-5)
            assert torch.allclose(got[:, -1], 1 - kept.sum(-1), atol=1e-5)
        assert stored.top_ids_NK.max() < VOCABULARY  # rows behind the tokens are padding


def test_size_and_error_are_told(world, tmp_path):
    """Fewer tokens lose more; with all but one nothing is lost."""
    few, many, all_but_one = (
        store(world, tmp_path / str(k), replace(CFG, top_k=k))[1] for k in (2, 32, 10 * VOCABULARY)
    )
    assert few["logits/bytes"] == few["logits/positions"] * 4 * (2 + 2 + 2)
    assert few["logits/share_of_full"] == pytest.approx(6 / VOCABULARY)
    assert few["error/tail_mass"] > many["error/tail_mass"] > all_but_one["error/tail_mass"]
    assert few["error/divergence"] > many["error/divergence"] > all_but_one["error/divergence"] >= 0.0
    assert few["error/tail_mass_max"] >= few["error/tail_mass"]
    assert all_but_one["error/divergence"] == pytest.approx(0.0, abs=1e-5)
    read = {
        tuple(render_conversation(tiny_policy().tokenizer, row["messages"])[0])
        for port in ("data", "general")
        for row in load_conversations(world[port].path)
    }
    assert few["teacher/total_tokens"] == sum(map(len, read))


def test_the_index_opens_as_a_dataset(world, tmp_path):
    artifact, metrics = store(world, tmp_path)
    rows = load_dataset(str(artifact.path), split="train")
    assert sum(rows["positions"]) == metrics["logits/positions"] and artifact.facts["rows"] == len(rows)


def test_files_hold_a_fixed_number_of_sequences(world, tmp_path, monkeypatch):
    whole, _ = store(world, tmp_path / "whole")
    monkeypatch.setattr(stage, "SEQUENCES_A_FILE", 7)
    parts, _ = store(world, tmp_path / "parts")
    assert len(list(parts.path.glob("*.safetensors"))) == -(-whole.facts["rows"] // 7)
    one, other = StoredLogits(whole.path), StoredLogits(parts.path)
    assert list(one.index) == list(other.index)
    for key in one.index:
        assert torch.equal(one.rows(key).top_ids_NK, other.rows(key).top_ids_NK)
        assert torch.allclose(one.rows(key).other_logps_NS, other.rows(key).other_logps_NS, atol=1e-4)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("objective", ["forward_kl", "jsd"])
def test_a_student_learns_as_from_the_teacher_itself(world, tmp_path, objective, packing):
    """All but one token stored: the same divergences, step by step. Eight stored: a little less."""
    settings = {"objective": objective, "packing": packing}
    online, lines = learn(world, tmp_path / "online", inputs={}, **settings)
    assert lines[0]["teacher/tokens"] > 0
    found = {}
    for k in (8, VOCABULARY):
        artifact, _ = store(world, tmp_path / f"logits{k}", replace(CFG, top_k=k))
        wired = {"teacher": None, "teacher_logits": artifact}
        found[k], lines = learn(world, tmp_path / f"stored{k}", inputs=wired, **settings)
        assert lines[0]["teacher/tokens"] == 0  # it was read when it was stored
    assert found[VOCABULARY] == pytest.approx(online, rel=1e-3)
    assert 0 < found[8][0] < online[0]


def test_other_data_or_another_cut_is_noticed(world, tmp_path):
    artifact, _ = store(world, tmp_path / "logits", ports=("teacher", "data"))
    with pytest.raises(StageFailed, match="the stored logits lack 10 of 50 conversations"):
        learn(world, tmp_path / "stage", inputs={"teacher": None, "teacher_logits": artifact})


def test_logits_of_another_tokenizer_or_template_are_refused(world, tmp_path):
    artifact, _ = store(world, tmp_path / "logits")
    for fact, told in (("tokenizer_hash", "tokenizer"), ("template_hash", "chat template")):
        other = replace(artifact, facts=artifact.facts | {fact: "other"})
        with pytest.raises(StageFailed, match=told):
            learn(world, tmp_path / fact, inputs={"teacher": None, "teacher_logits": other})


def test_the_plan_of_a_student_of_stored_logits():
    student = {"tokenizer_hash": "a", "template_hash": "t"}
    cfg = DistillConfig(seed=0, hard_weight=0.5, temperature=2.0)
    teacher = student | {"parameters": 7, "context_length": 512}
    made = outline(replace(CFG, max_tokens=512), {"teacher": teacher, "data": {"rows": 3}, "general": {"rows": 2}})
    assert made.faults == [] and made.parameters == 7
    stored = made.outputs["logits"]
    assert stored == student | {"top_k": 8, "temperatures": [1.0, 2.0], "rows": 5}
    wired = {"student": student, "data": {"rows": 3}, "teacher_logits": stored}
    assert distill_outline(cfg, wired).faults == []
    for key, inputs, changes in (
        ("temperature", {}, {"temperature": 3.0}),
        ("inputs.teacher_logits", {"teacher_logits": stored | {"tokenizer_hash": "b"}}, {}),
        ("inputs.teacher_logits", {"teacher_logits": stored | {"template_hash": "u"}}, {}),
        ("inputs.teacher_logits", {"teacher": student}, {}),  # one of the two is enough
        ("inputs.teacher_logits", {"teacher_logits": {"path": "copy"}}, {}),  # whose tokens?
    ):
        (fault,) = distill_outline(replace(cfg, **changes), wired | inputs).faults
        assert fault.key == key and fault.remedy


def test_what_cannot_be_right_is_refused():
    bad = replace(CFG, top_k=0, temperatures=[0.0], max_tokens=1, over_length="cut", dtype="int8")
    assert {fault.key for fault in bad.faults()} == {"top_k", "temperatures", "max_tokens", "over_length", "dtype"}
    assert CFG.faults() == []
    (fault,) = outline(CFG, {"teacher": {"context_length": 95}, "data": {}}).faults
    assert fault.key == "max_tokens"
    (fault,) = outline(CFG, {"teacher": {"vocab_size": 8}, "data": {}}).faults
    assert fault.key == "top_k" and fault.remedy.startswith("write at most 7")
    (fault,) = outline(CFG, {"teacher": {}, "data": {"rows": 0}}).faults
    assert fault.key == "inputs.data"


def test_a_stop_request_is_heeded(world, tmp_path):
    context = Context(stage="teacher_logits", workdir=tmp_path, seed=0)
    context.stop.set()
    with pytest.raises(Interrupted):
        stage.run(CFG, {port: world[port] for port in ("teacher", "data")}, context)


def test_nothing_to_read_is_a_failure(world, tmp_path):
    save_conversations(tmp_path / "none", [])
    with pytest.raises(StageFailed, match="nothing would be learned"):
        store(world | {"data": replace(world["data"], path=tmp_path / "none")}, tmp_path, ports=("teacher", "data"))
