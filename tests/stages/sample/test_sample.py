"""The stage on a model that answers four sums, and on one that answers nothing."""

from __future__ import annotations

import json

import datasets
import pytest

from pipeline.artifacts import Interrupted, StageFailed
from pipeline.tracking import Context
from stages.parts.data.conversations import load_conversations
from stages.sample.config import SampleConfig
from stages.sample.ledger import REASONS
from stages.sample.run import run
from tests.stages.answering import SUMS, artifacts, make_problem


def config(**changes):
    return SampleConfig(**{"seed": 0, "samples": 6, "max_response_tokens": 40, "keep_per_problem": 2, **changes})


@pytest.fixture(scope="module")
def inputs(answering_policy, tmp_path_factory):
    train = [make_problem(a, b) for a, b in SUMS] + [make_problem(9, 9, answer="1")]
    splits = {"train": train, "dev": [], "test": []}
    return artifacts(tmp_path_factory.mktemp("sample"), answering_policy, splits, "policy")


def test_kept_and_ledger(inputs, tmp_path):
    context = Context("rejection_sampling", tmp_path, 0)
    metrics = run(config(), inputs, context)
    assert metrics["ledger/sampled"] == 5 * 6
    assert metrics["ledger/kept"] + sum(metrics[f"ledger/{reason}"] for reason in REASONS) == 30
    assert metrics["ledger/kept"] >= 4 and metrics["ledger/duplicate"] > 0 and metrics["ledger/wrong"] >= 5
    assert 30 < metrics["sampled/tokens"] <= 30 * 40
    kept = load_conversations(tmp_path / "kept")
    assert len(kept) == metrics["ledger/kept"] == context.facts["kept"]["rows"]
    assert all(row["messages"][-1]["content"].startswith("<think>") for row in kept)
    assert "reasoning-9+9" not in {row["problem_id"] for row in kept}
    assert len(datasets.load_dataset(str(tmp_path / "kept"), split="train")) == len(kept)
    rows = [json.loads(line) for line in (tmp_path / "ledger" / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 5 and sum(row["sampled"] for row in rows) == 30


def test_repeated_run_is_identical(inputs, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        run(config(), inputs, Context("rejection_sampling", tmp_path / name, 0))
    files = [(tmp_path / name / "kept" / "train.jsonl").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_nothing_kept_is_a_failure(inputs, tmp_path):
    with pytest.raises(StageFailed, match=r"none of 30 responses was kept: .*truncated"):
        run(config(max_response_tokens=3), inputs, Context("rejection_sampling", tmp_path, 0))


def test_stop_is_honoured(inputs, tmp_path):
    context = Context("x", tmp_path, 0)
    context.stop.set()
    with pytest.raises(Interrupted):
        run(config(), inputs, context)
