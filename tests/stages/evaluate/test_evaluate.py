"""The stage on a model that answers four sums: numbers, files, determinism, stopping, the plan's view."""

from __future__ import annotations

import json

import datasets
import pytest

from pipeline.artifacts import Interrupted, StageFailed
from pipeline.tracking import Context
from stages.evaluate.config import EvaluateConfig, outline
from stages.evaluate.run import run
from tests.stages.answering import SUMS, artifacts, make_problem


def config(**changes):
    values = {
        "seed": 0, "split": "test", "suites": ["reasoning", "general"], "max_problems": 500, "samples": 4, "ks": [1, 4],
        "temperature": 1.0, "top_p": 1.0, "max_response_tokens": 40,
    }  # fmt: skip
    return EvaluateConfig(**{**values, **changes})


@pytest.fixture(scope="module")
def inputs(answering_policy, tmp_path_factory):
    problems = [make_problem(a, b) for a, b in SUMS]
    impossible = [make_problem(a, b, "general", answer="77") for a, b in SUMS[:3]]
    splits = {"train": [], "dev": [], "test": problems + impossible}
    return artifacts(tmp_path_factory.mktemp("evaluate"), answering_policy, splits, "model")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_numbers_and_files(inputs, tmp_path):
    context = Context("cold_start.eval", tmp_path, 0)
    metrics = run(config(), inputs, context)
    assert metrics["reasoning/pass@1"] > 0.8
    assert metrics["reasoning/pass@4"] == 1.0
    assert metrics["general/pass@1"] == 0.0
    assert metrics["reasoning/problems"] == 4 and metrics["general/problems"] == 3
    assert metrics["reasoning/format"] > 0.8 and metrics["reasoning/reasoned"] > 0.8
    results = lines(tmp_path / "results" / "results.jsonl")
    assert [row["n"] for row in results] == [4] * 7
    assert sum(row["c"] for row in results) == metrics["reasoning/pass@1"] * 16
    responses = datasets.load_dataset(str(tmp_path / "responses"), split="train")
    assert len(responses) == 28
    assert set(responses.column_names) == {
        "problem_id", "suite", "family", "sample_index", "prompt", "text", "tokens", "truncated", "score", "right",
        "parts",
    }  # fmt: skip
    assert json.loads(responses[0]["parts"])["accuracy"] in (0.0, 1.0)
    assert context.facts["responses"] == {"rows": 28}
    assert lines(tmp_path / "metrics.jsonl")[0]["reasoning/pass@1"] == metrics["reasoning/pass@1"]


def test_same_result_under_another_name(inputs, tmp_path):
    """The noise is the evaluation's, not the stage's: models are compared on the same draws."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = run(config(), inputs, Context("cold_start.eval", tmp_path / "a", 0))
    second = run(config(), inputs, Context("general_rl.eval", tmp_path / "b", 5))
    assert first == second
    responses = [(tmp_path / name / "responses" / "train.jsonl").read_bytes() for name in "ab"]
    assert responses[0] == responses[1]


def test_stop_is_honoured(inputs, tmp_path):
    context = Context("x", tmp_path, 0)
    context.stop.set()
    with pytest.raises(Interrupted):
        run(config(), inputs, context)


def test_no_problems_is_a_failure(inputs, tmp_path):
    with pytest.raises(StageFailed, match="no dev problems"):
        run(config(split="dev"), inputs, Context("x", tmp_path, 0))


def test_outline():
    suites = {"reasoning": {"test": 600}, "general": {"test": 10}}
    facts = {"model": {"parameters": 7}, "problems": {"suites": suites}}
    plan = outline(config(), facts)
    assert plan.outputs["responses"] == {"rows": 2040} and plan.tokens == 2040 * 40 and plan.parameters == 7
    assert not plan.faults
    assert "samples" in outline(config(temperature=0.0), facts).inert


def test_a_suite_that_the_problems_lack_is_no_number_less_but_a_fault():
    facts = {"model": {}, "problems": {"suites": {"reasoning": {"test": 600}, "general": {"test": 10}}}}
    (fault,) = outline(config(suites=["reasoning", "generl"]), facts).faults
    assert (fault.key, fault.problem) == ("suites", "there are no test problems of 'generl'")
    assert fault.remedy == "write suites of the problem set: general, reasoning"
    assert not outline(config(split="tst"), facts).faults  # its own fault says enough
    (fault,) = config(suites=[]).faults()
    assert (fault.key, fault.problem) == ("suites", "is empty")


@pytest.mark.parametrize(
    ("ks", "problem", "remedy"),
    [
        ([], "is empty: nothing would be measured", "write [1] or more, up to 4"),
        ([1, -2], "pass@-2 means nothing", "write numbers from 1 to 4"),
        ([0], "pass@0 means nothing", "write numbers from 1 to 4"),
        ([1, 8], "pass@8 cannot be had from 4 samples", "write samples=8, or ks up to 4"),
    ],
)
def test_ks_that_cannot_be_had(ks, problem, remedy):
    (fault,) = config(samples=4, ks=ks).faults()
    assert (fault.key, fault.problem, fault.remedy) == ("ks", problem, remedy)


def test_faults():
    assert [fault.key for fault in config(temperature=-1.0, top_p=0.0).faults()] == ["temperature", "top_p"]
    assert not config().faults()
