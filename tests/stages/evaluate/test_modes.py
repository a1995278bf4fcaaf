"""Modes and budgets in an evaluation: what is asked, what counts as right, and that it is off by default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.artifacts import Artifact
from pipeline.tracking import Context
from stages.evaluate.config import EvaluateConfig, outline
from stages.evaluate.modes import ask, mode_metrics, mode_results, pattern_of
from stages.evaluate.run import run
from stages.parts.data.flags import HELD_OUT
from stages.parts.data.modes import is_flagged, wants_thinking
from tests.stages.answering import SUMS, artifacts, make_problem

PROBLEMS = [make_problem(a, b) for a in range(1, 6) for b in range(1, 6)]


def config(**changes) -> EvaluateConfig:
    given = {
        "seed": 0, "split": "test", "suites": ["reasoning"], "max_problems": 10, "samples": 2, "ks": [1],
        "temperature": 1.0, "top_p": 1.0, "max_response_tokens": 40,
    }  # fmt: skip
    return EvaluateConfig(**given | changes)


@pytest.fixture(scope="module")
def inputs(answering_policy, tmp_path_factory) -> dict[str, Artifact]:
    test = [make_problem(a, b) for a, b in SUMS]
    return artifacts(tmp_path_factory.mktemp("modes"), answering_policy, {"test": test}, "model")


def evaluated(inputs, folder: Path, cfg: EvaluateConfig) -> dict[str, float]:
    folder.mkdir(parents=True, exist_ok=True)
    return run(cfg, inputs, Context(stage="x.eval", workdir=folder, seed=0))


@pytest.mark.parametrize("thinking", [True, False])
def test_problems_are_asked_in_held_out_ways_with_neighbours_before_them(thinking):
    asked = ask(PROBLEMS, thinking, lambda messages: True)
    for one, before in zip(asked, PROBLEMS, strict=True):
        assert wants_thinking(one.messages) is thinking and is_flagged(one.messages)
        assert before.messages[-1]["content"] in one.messages[-1]["content"]
        users = [turn["content"] for turn in one.messages if turn["role"] == "user"]
        assert len(users) == pattern_of(before).turns
        assert not any(before.messages[-1]["content"] == text for text in users[:-1])
    assert {pattern_of(one).name for one in PROBLEMS} == {pattern.name for pattern in HELD_OUT}


def test_where_there_is_no_room_for_turns_it_is_one():
    asked = ask(PROBLEMS, False, lambda messages: len(messages) < 5)  # three turns are five messages
    names = {one.metadata["pattern"] for one in asked}
    assert names == {pattern.name for pattern in HELD_OUT if pattern.turns < 3}
    assert all(len(one.messages) < 5 and not wants_thinking(one.messages) for one in asked)


def test_an_evaluation_with_modes_and_budgets(inputs, tmp_path):
    cfg = config(modes=True, budgets=[1, 12], mode_samples=2, stop_text=" stop")
    metrics = evaluated(inputs, tmp_path / "on", cfg)
    plain = evaluated(inputs, tmp_path / "off", config())
    assert {key: metrics[key] for key in plain} == plain  # beside the plain numbers, which stay what they were
    # The model always thinks: it obeys no flag that asks for an answer at once, and then nothing it says is right.
    assert metrics["reasoning/no_thinking/obeyed"] == metrics["reasoning/no_thinking/accuracy"] == 0.0
    assert metrics["modes/thinking_obeyed"] > metrics["modes/obeyed"] > 0.0
    assert metrics["reasoning/budget_1/forced"] == 1.0 and metrics["reasoning/budget_12/forced"] < 0.5
    assert metrics["reasoning/budget_12/accuracy"] >= metrics["reasoning/budget_1/accuracy"]
    rows = [json.loads(line) for line in (tmp_path / "on" / "results" / "modes.jsonl").read_text().splitlines()]
    assert {row["setting"] for row in rows} == {"thinking", "no_thinking", "at_once", "budget_1", "budget_12"}
    assert all(row["samples"] == 2 for row in rows) and len(rows) == 5 * len(SUMS)
    assert not (tmp_path / "off" / "results" / "modes.jsonl").exists()


def test_right_in_the_wrong_mode_is_not_right():
    def row(setting, right, obeyed, judged=True):
        return {"setting": setting, "pattern": "", "suite": "s", "problem_id": "p", "right": right and obeyed,
                "obeyed": obeyed, "judged": judged, "tokens": 4, "forced": False, "reasoned": False}  # fmt: skip

    rows = [row("no_thinking", True, False), row("no_thinking", True, True), row("no_thinking", False, True, False)]
    metrics = mode_metrics(rows)
    assert metrics["s/no_thinking/accuracy"] == 0.5  # of the two that can be judged
    assert metrics["s/no_thinking/obeyed"] == pytest.approx(2 / 3)
    (result,) = mode_results(rows)
    assert (result["n"], result["c"], result["samples"], result["obeyed"]) == (2, 1, 3, 2)


def test_off_is_no_part_of_the_recipe_and_budgets_must_fit():
    facts = {"model": {}, "problems": {}}
    assert set(outline(config(), facts).redundant) == {"modes", "budgets", "stop_text", "mode_samples"}
    assert outline(config(modes=True), facts).redundant == ["budgets", "stop_text"]
    assert outline(config(budgets=[4]), facts).redundant == ["modes"]
    assert [fault.key for fault in outline(config(budgets=[8, 40, -1]), facts).faults] == ["budgets", "budgets"]
    assert [fault.key for fault in config(mode_samples=0).faults()] == ["mode_samples"]
