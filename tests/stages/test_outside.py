"""Inputs from the hub: downloaded at their commit before a stage starts, or refused in one line with what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.artifacts import Artifact, StageFailed
from pipeline.job import write_job
from pipeline.store import open_partial
from pipeline.worker import Place, run_rank
from stages.parts.outside import at_hand
from stages.parts.policy.model import load_policy, save_policy
from tests.fake_hub import FakeHub, answers
from tests.pipeline.build_plan import planned
from tests.stages.policy.tiny import tiny_policy

COMMIT = "c" * 40


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with answers(tmp_path / "cache") as found:
        found.heads |= {"models/org/name": COMMIT, "datasets/org/rows": COMMIT}
        found.folders |= {"models/org/name": tmp_path / "model", "datasets/org/rows": tmp_path / "rows"}
        (tmp_path / "rows").mkdir()
        yield found


def from_hub(name: str, kind: str) -> Artifact:
    return Artifact("port", kind, Path(f"hub:{name}@{COMMIT}"), {}, "f" * 16, "d" * 64)


def test_a_model_is_brought_here_and_known_by_its_files(hub: FakeHub, tmp_path: Path) -> None:
    policy = tiny_policy()
    facts = save_policy(tmp_path / "model", policy.model.state_dict(), policy)
    (tmp_path / "model" / "model.gguf").write_text("weights of another form")
    brought = at_hand(
        {"policy": from_hub("org/name", "model"), "data": Artifact("data", "metrics", tmp_path, {}, "", "")}
    )
    assert brought["data"].path == tmp_path
    assert brought["policy"].facts == facts
    assert load_policy(brought["policy"].path).model.num_parameters() == policy.model.num_parameters()
    assert not (brought["policy"].path / "model.gguf").exists()
    hub.asked.clear()
    assert at_hand({"policy": from_hub("org/name", "model")})["policy"].path == brought["policy"].path
    assert not [path for path in hub.asked if "safetensors" in path]  # it is here already


def test_a_rank_downloads_before_its_stage_starts(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "rows" / "train.jsonl").write_text("{}\n")
    (tmp_path / "rows" / "total.json").write_text(json.dumps({"count": 40}))
    folder, _ = open_partial(tmp_path / "store", "count", "abc", {}, ["total"])
    write_job(folder, planned("a"), {"before": from_hub("org/rows", "dataset:conversations")}, 0.0)
    assert run_rank(folder, Place(), threading.Event()) == 0
    assert json.loads((folder / "total" / "total.json").read_text()) == {"count": 43}


def test_a_dataset_of_another_form_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "rows" / "README.json").write_text("{}")
    with pytest.raises(StageFailed, match=f"hub:org/rows@{COMMIT} is no dataset:conversations: it has no train.jsonl"):
        at_hand({"data": from_hub("org/rows", "dataset:conversations")})


def test_what_cannot_be_downloaded_fails_in_one_line(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "rows" / "train.jsonl").write_text("{}\n")
    folder, _ = open_partial(tmp_path / "store", "count", "abc", {}, ["total"])
    write_job(folder, planned("a"), {"before": from_hub("org/gone", "dataset:conversations")}, 0.0)
    assert run_rank(folder, Place(), threading.Event()) == 1
    failure = json.loads((folder / "failure-0.json").read_text())
    assert failure["expected"] and failure["message"].startswith("org/gone cannot be downloaded (")
    assert f"hf download org/gone --repo-type dataset --revision {COMMIT}" in failure["message"]
