"""Data in both modes: what is asked is what is answered, shares hold, held-out places never occur, seeds decide all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context
from stages.mode_data.config import ModeDataConfig, outline
from stages.mode_data.run import run
from stages.parts.data.config import DataConfig
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.flags import SYSTEM_TEXT
from stages.parts.data.modes import is_flagged, obeys, wants_thinking
from stages.parts.data.problems import load_problems, save_problems
from stages.parts.data.template import render_conversation, require_modes
from stages.parts.data.tokenizer import build_tokenizer
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.reward import score_response

CONFIG = ModeDataConfig(seed=0, conversations=600)


def problem(suite: str, a: int, b: int) -> Problem:
    return Problem(f"{suite}-{a}-{b}", suite, "sums", [{"role": "user", "content": f"{a}+{b}=?"}], str(a + b), "exact")


def demonstration(one: Problem) -> dict:
    question = one.messages[0]["content"]
    text = f"<think>so {question[:-2]}={one.answer}</think>\\boxed{{{one.answer}}}"
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return {"messages": turns, "problem_id": one.id, "suite": one.suite}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("mode_data")
    train = [problem(suite, a, b) for suite, b in (("reasoning", 1), ("general", 2)) for a in range(40)]
    held = {"dev": [problem("reasoning", 50, 3)], "test": [problem("reasoning", 60, 3), problem("general", 61, 3)]}
    save_problems(root / "problems", {"train": train, **held})
    save_conversations(root / "thinking", [demonstration(one) for one in train[:20]])
    save_conversations(root / "general", [demonstration(one) for one in train[40:60]])
    facts = {"suites": {"reasoning": {"train": 40}, "general": {"train": 40}}, "split_seed": 0, "path": "elsewhere"}
    kinds = {"problems": "dataset:problems", "thinking": "dataset:conversations", "general": "dataset:conversations"}
    return {
        port: Artifact(port, kind, root / port, facts if port == "problems" else {}, port, port)
        for port, kind in kinds.items()
    }


def made(folder: Path, inputs, cfg=CONFIG):
    folder.mkdir()
    context = Context(stage="fusion_data", workdir=folder, seed=0)
    metrics = run(cfg, inputs, context)
    return load_conversations(folder / "data"), load_problems(folder / "problems", "train"), metrics, context.facts


@pytest.fixture(scope="module")
def result(inputs, tmp_path_factory):
    return made(tmp_path_factory.mktemp("out") / "a", inputs)


def test_every_answer_is_in_the_mode_that_is_asked_for(result):
    rows = result[0]
    asked = [wants_thinking(row["messages"][:-1]) for row in rows]
    assert all(obeys(row["messages"][-1]["content"], mode) for row, mode in zip(rows, asked, strict=True))
    assert 0.42 < sum(asked) / len(rows) < 0.58
    unflagged = [row for row in rows if not is_flagged(row["messages"])]
    assert 0.15 < len(unflagged) / sum(asked) < 0.35
    assert all(wants_thinking(row["messages"][:-1]) for row in unflagged)  # thinking is the default


def test_answers_without_thinking_are_the_gold(result):
    for row in result[0]:
        if not wants_thinking(row["messages"][:-1]):
            left, right = row["messages"][-2]["content"].replace("/no_think", "").strip()[:-2].split("+")
            assert row["messages"][-1]["content"] == f"<think></think>\\boxed{{{int(left) + int(right)}}}"


def test_earlier_turns_are_answered_without_thinking_and_not_learned(result):
    several = [row for row in result[0] if sum(turn["role"] == "user" for turn in row["messages"]) > 1]
    assert 0.3 < len(several) / len(result[0]) < 0.6
    tokenizer = build_tokenizer()
    require_modes(tokenizer)
    for row in several:
        assert row["loss"] == "last"
        assert not any("<think>" in turn["content"] for turn in row["messages"][:-1])
        ids, mask = render_conversation(tokenizer, row["messages"], last_only=True)
        learned = [token for token, on in zip(ids, mask, strict=True) if on]
        assert tokenizer.decode(learned) == row["messages"][-1]["content"] + "<|end|>"


def test_places_that_are_held_out_never_occur(result):
    rows, problems = result[0], result[1]
    for messages in [row["messages"][:-1] for row in rows] + [one.messages for one in problems]:
        users = [turn["content"] for turn in messages if turn["role"] == "user"]
        assert len(users) < 3 and not any("\n" in text for text in users)
        assert all(text.count("/") <= 1 for text in users)
        assert not any(SYSTEM_TEXT in turn["content"] for turn in messages if turn["role"] == "system")


def test_problems_keep_what_they_are_and_ask_in_both_modes(result, inputs, tmp_path):
    original = {one.id: one for one in load_problems(inputs["problems"].path, "train")}
    asked = result[1]
    assert [one.id for one in asked] == list(original)
    for one in asked:
        before = original[one.id]
        assert (one.answer, one.verifier, one.suite) == (before.answer, before.verifier, before.suite)
        assert before.messages[0]["content"] in one.messages[-1]["content"]
    assert 0.3 < sum(wants_thinking(one.messages) for one in asked) / len(asked) < 0.7
    assert result[3]["problems"] == {"suites": inputs["problems"].facts["suites"], "split_seed": 0}


def test_the_seed_decides_everything(result, inputs, tmp_path):
    assert made(tmp_path / "again", inputs)[0] == result[0]
    assert made(tmp_path / "other", inputs, ModeDataConfig(seed=1, conversations=600))[0] != result[0]


def test_translations_come_in_with_both_modes_and_their_own_scoring(inputs, tmp_path):
    data = DataConfig(source="translation", train_problems=60, dev_problems=6, test_problems=12, demonstrations=40)
    cfg = ModeDataConfig(
        seed=0, conversations=200, suites={"reasoning": 0.5, "translation": 0.5}, more={"translation": data}
    )
    rows, problems, metrics, facts = made(tmp_path / "t", inputs, cfg)
    theirs = [row for row in rows if row["suite"] == "translation"]
    assert metrics["data/translation"] == len(theirs) > 60
    answers = {wants_thinking(row["messages"][:-1]): row["messages"][-1]["content"] for row in theirs}
    assert "=" in answers[True] and answers[False].startswith("<think></think>") and "boxed" not in answers[False]
    asked = [one for one in problems if one.suite == "translation"]
    assert len(asked) == 60 and {one.verifier for one in asked} == {"chrf"}
    assert facts["problems"]["suites"]["translation"]["test"] == 12
    assert facts["problems"]["scored_by"] == {"translation": ["accuracy", "format"]}
    score = score_response(
        asked[0], f"<think>x</think>{asked[0].answer}", False, RewardConfig(format=1.0, language=1.0)
    )
    assert score.parts["accuracy"] == 1.0 and score.value == sum(score.parts[part] for part in ("accuracy", "format"))


def test_a_suite_that_has_fewer_problems_than_are_asked_for_says_so(inputs, tmp_path, capsys):
    data = DataConfig(source="helpful", train_problems=3000, dev_problems=4, test_problems=4, demonstrations=4)
    cfg = ModeDataConfig(seed=0, conversations=20, suites={"reasoning": 1.0}, more={"helpful": data})
    _, problems, _, facts = made(tmp_path / "h", inputs, cfg)
    found = facts["problems"]["suites"]["helpful"]["train"]
    assert found == sum(one.suite == "helpful" for one in problems) < 3000
    assert f"helpful: {found} train problems of 3000 asked for: there are no more" in capsys.readouterr().out


def test_a_suite_without_thinking_is_an_error(inputs, tmp_path):
    lacking = {port: artifact for port, artifact in inputs.items() if port != "general"}
    with pytest.raises(StageFailed, match="'general' has no thinking"):
        made(tmp_path / "x", lacking)


def test_what_the_plan_refuses():
    facts = {"problems": {"suites": {"reasoning": {"train": 4}}}, "thinking": {"rows": 0}}
    told = outline(CONFIG, facts)
    assert [fault.key for fault in told.faults] == ["suites", "inputs.thinking"]
    data = DataConfig(source="general", train_problems=4, dev_problems=1, test_problems=1)
    twice = replace(CONFIG, suites={"reasoning": 1.0}, more={"reasoning": data})
    told = outline(twice, facts | {"thinking": {"rows": 1}})
    assert [(fault.key, fault.problem) for fault in told.faults] == [
        ("more.reasoning", "is a suite that the problems have already")
    ]
    for wrong in ({"no_thinking_fraction": 0.0}, {"unflagged_fraction": 1.0}, {"conversations": 0}, {"suites": {}}):
        assert [fault.key for fault in ModeDataConfig(seed=0, **wrong).faults()] == list(wrong)


def test_the_files_open_as_data_sets(result, inputs, tmp_path):
    made(tmp_path / "x", inputs)
    lines = (tmp_path / "x" / "data" / "train.jsonl").read_text().splitlines()
    assert set(json.loads(lines[0])) <= {"messages", "problem_id", "suite", "loss"}
