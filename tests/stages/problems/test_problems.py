"""The stage `problems` on the embedded suites and on a small file."""

from __future__ import annotations

import pytest

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context
from stages.parts.data.config import DataConfig
from stages.parts.data.conversations import load_conversations
from stages.parts.data.problems import SPLITS, load_problems
from stages.parts.data.splits import identities
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.reward import score_response
from stages.problems.config import ProblemsConfig, outline
from stages.problems.run import run

SIZES = {"train_problems": 120, "dev_problems": 30, "test_problems": 60, "demonstrations": 40}


def config(**reasoning) -> ProblemsConfig:
    data = DataConfig(**{"source": "reasoning_gym", **SIZES, **reasoning})
    return ProblemsConfig(seed=0, reasoning=data, general=DataConfig(source="general", **SIZES))


def context_in(folder) -> Context:
    folder.mkdir(exist_ok=True)
    return Context(stage="problems", workdir=folder, seed=0)


def test_embedded(tmp_path):
    context = context_in(tmp_path)
    cfg = config()
    assert not cfg.faults()
    metrics = run(cfg, {}, context)
    assert metrics["reasoning/test_problems"] == 60 and metrics["general/demonstrations"] == 40
    declared = outline(cfg, {}).outputs
    for port, facts in declared.items():
        assert facts.items() <= context.facts[port].items()
    seen: set[str] = set()
    for split in SPLITS:
        problems = load_problems(tmp_path / "problems", split)
        found = {identity for problem in problems for identity in identities(problem)}
        assert not found & seen
        seen |= found
        assert len({problem.family for problem in problems}) == 8
    train = {problem.id: problem for problem in load_problems(tmp_path / "problems", "train")}
    for port in ("demonstrations", "general"):
        for row in load_conversations(tmp_path / port):
            reply = row["messages"][-1]["content"]
            assert score_response(train[row["problem_id"]], reply, False, RewardConfig(format=1.0)).value == 2.0


def test_same_for_every_run(tmp_path):
    for name in ("a", "b"):
        run(config(), {}, context_in(tmp_path / name))
    for file in ("problems/train.jsonl", "problems/test.jsonl", "demonstrations/train.jsonl", "general/train.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_file_with_answers_only_declares_no_demonstrations(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"question": "What is {n}+1?", "answer": "{n + 1}"}}\n' for n in range(30)))
    cfg = config(source="jsonl", path=str(path))
    plan = outline(cfg, {})
    assert plan.outputs["demonstrations"] == {"rows": 0}
    assert "reasoning.difficulty" in plan.inert
    context = context_in(tmp_path / "out")
    run(cfg, {}, context)
    assert context.facts["demonstrations"] == {"rows": 0}
    assert context.facts["problems"]["suites"]["reasoning"] == {"train": 18, "dev": 4, "test": 8}
    assert "split in proportion" in (tmp_path / "out" / "notes.jsonl").read_text()


def test_faults_carry_the_suite():
    cfg = config(source="jsonl", path="no/such.jsonl")
    assert [fault.key for fault in cfg.faults()] == ["reasoning.path"]


def test_a_leak_fails_the_stage(tmp_path):
    """The general suite asks a question that the reasoning suite holds out."""
    rows = "".join(f'{{"question": "What is {n}+1?", "answer": "{n + 1}"}}\n' for n in range(30))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "same.jsonl").write_text(rows)
    cfg = config(source="jsonl", path=str(tmp_path / "rows.jsonl"))
    cfg.general = DataConfig(source="jsonl", path=str(tmp_path / "same.jsonl"), seed=1, **SIZES)
    with pytest.raises(StageFailed, match="leaks"):
        run(cfg, {}, context_in(tmp_path / "out"))
