"""A demonstration for every verdict, and the stage with a model that answers without thinking."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context
from stages.curate.config import CurateConfig
from stages.curate.filters import KEPT, REASONS, leads_to, verdict
from stages.curate.run import run
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.splits import normalise
from tests.stages.answering import SUMS, answer_to, artifacts, make_problem

CONFIG = CurateConfig(seed=0, direct_samples=2, max_response_tokens=24)
PROBLEM = make_problem(1, 2)
GOOD = "<think>so 1+2=3</think>\\boxed{3}"


def row(text: str, question: str = "1+2?") -> dict:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return {"messages": turns, "problem_id": PROBLEM.id, "suite": "reasoning"}


@pytest.mark.parametrize(
    ("text", "steps", "direct", "expected"),
    [
        (GOOD, 1, 0.0, KEPT),
        (GOOD, 1, 0.5, KEPT),  # not more than half
        (GOOD, 1, 0.75, "needs_no_thinking"),
        ("<think>so 1+2=4</think>\\boxed{4}", 1, 0.0, "wrong"),
        ("so 1+2=3 \\boxed{3}", 1, 0.0, "format"),
        ("<think>" + "it is three so " * 12 + "</think>\\boxed{3}", 1, 0.0, "repetition"),
        (GOOD, 2, 0.0, "guessing"),
        ("<think>so 1+1=2, 2+1=3</think>\\boxed{3}", 2, 0.0, KEPT),
        ("<think>so 1+2=4</think>\\boxed{3}", 1, 0.0, "mismatch"),
        ("<think>entonces la suma es 3</think>\\boxed{3}", 1, 0.0, "language"),
    ],
)
def test_verdict(text, steps, direct, expected):
    problem = make_problem(1, 2)
    problem.metadata["steps"] = steps
    assert verdict(row(text), problem, set(), direct, CONFIG) == expected


def test_queries_that_are_held_out_or_cannot_be_verified():
    assert verdict(row(GOOD), PROBLEM, {normalise("1+2")}, 0.0, CONFIG) == "held_out"
    assert verdict(row(GOOD), None, set(), 0.0, CONFIG) == "unverifiable"


def test_thinking_that_leads_to_its_answer():
    assert leads_to("1+2=3, 2+2=4", "3+4i") and leads_to("b a r", "b a r") and not leads_to("1+2=3", "13")


@pytest.fixture(scope="module")
def inputs(answering_policy, tmp_path_factory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("curate")
    train = [make_problem(a, b) for a, b in SUMS]
    found = artifacts(root, answering_policy, {"train": train, "dev": [], "test": []}, "policy")
    rows = []
    for one in train:
        turns = [*one.messages, answer_to(one)]
        rows.append({"messages": turns, "problem_id": one.id, "suite": one.suite})
    rows[3] = rows[3] | {"messages": [*train[3].messages, {"role": "assistant", "content": "8"}]}
    save_conversations(root / "data", rows)
    return found | {"data": Artifact("data", "dataset:conversations", root / "data", {"rows": 4}, "d", "d")}


def context(folder: Path) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    return Context(stage="cold_start_data", workdir=folder, seed=0)


def test_the_ledger_adds_up(inputs, tmp_path):
    without = {port: artifact for port, artifact in inputs.items() if port != "policy"}
    metrics = run(CONFIG, without, context(tmp_path))
    assert (metrics["ledger/sampled"], metrics["ledger/kept"]) == (4.0, 3.0)
    assert metrics["ledger/kept"] + sum(metrics[f"ledger/{reason}"] for reason in REASONS) == 4.0
    assert len(load_conversations(tmp_path / "kept")) == 3


def test_what_a_model_solves_without_thinking_is_dropped(inputs, tmp_path):
    """This model has learned four answers by heart: behind an empty block it may still know some of them."""
    metrics = run(
        CurateConfig(seed=0, direct_samples=4, max_direct_share=1.0, max_response_tokens=24),
        inputs,
        context(tmp_path / "a"),
    )
    assert metrics["ledger/needs_no_thinking"] == 0.0  # no share is above 1
    strict = CurateConfig(seed=0, direct_samples=8, max_direct_share=0.0, max_response_tokens=24)
    try:
        dropped = run(strict, inputs, context(tmp_path / "b"))["ledger/needs_no_thinking"]
    except StageFailed as failure:
        dropped = float(str(failure).count("needs_no_thinking"))
    assert dropped > 0.0


def test_bad_numbers_are_faults():
    for wrong in ({"direct_samples": 0}, {"max_direct_share": 1.5}, {"temperature": -1.0}, {"max_response_tokens": 0}):
        assert [fault.key for fault in CurateConfig(seed=0, **wrong).faults()] == list(wrong)
