"""The stage `problems` on the embedded suites and on a small file."""

from __future__ import annotations

import pytest

from pipeline.artifacts import Interrupted, StageFailed
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


def test_a_stop_is_heard_while_problems_are_drawn(tmp_path):
    context = context_in(tmp_path)
    context.stop.set()
    with pytest.raises(Interrupted, match="drawing problems stopped"):
        run(config(), {}, context)


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
    assert "fewer rows than asked for, which leaves" in (tmp_path / "out" / "notes.jsonl").read_text()


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


def open_suites() -> ProblemsConfig:
    cfg = config()
    cfg.helpful, cfg.safety = (DataConfig(source=name, seed=7, **SIZES) for name in ("helpful", "safety"))
    return cfg


def test_open_suites_are_off_unless_chosen_and_name_what_scores_them(tmp_path):
    assert set(config().suites()) == {"reasoning", "general"}
    assert outline(config(), {}).redundant == ["helpful", "safety"]  # so that they are in no older fingerprint
    assert "scored_by" not in outline(config(), {}).outputs["problems"]
    cfg, context = open_suites(), context_in(tmp_path)
    assert not cfg.faults() and outline(cfg, {}).redundant == []
    metrics = run(cfg, {}, context)
    declared = outline(cfg, {}).outputs
    assert declared["problems"]["scored_by"]["safety"] == ["accuracy", "harmlessness", "format", "language"]
    assert declared["problems"]["scored_by"] == context.facts["problems"]["scored_by"]
    assert declared["general"] == context.facts["general"] == {"rows": 120}
    assert metrics["helpful/test_problems"] == metrics["safety/test_problems"] == 60
    rows = load_problems(tmp_path / "problems", "test", ["helpful", "safety"])
    assert all(row.metadata["scored_by"] == declared["problems"]["scored_by"][row.suite] for row in rows)
    assert {row["suite"] for row in load_conversations(tmp_path / "general")} == {"general", "helpful", "safety"}


def test_open_suites_leave_the_others_and_their_splits_as_they_are(tmp_path):
    run(config(), {}, context_in(tmp_path / "without"))
    run(open_suites(), {}, context_in(tmp_path / "with"))
    for split in SPLITS:
        one, other = (load_problems(tmp_path / name / "problems", split, ["reasoning", "general"])
                      for name in ("without", "with"))  # fmt: skip
        assert one == other
