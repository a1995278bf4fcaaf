"""A name of the hub becomes a commit once, and stays that commit; a hub on this machine stands for the real one."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipeline import hub
from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.hub import Repository, Revisions
from pipeline.messages import Refused
from pipeline.plan import make_plan
from tests.fake_hub import FakeHub, answers, serve

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "a" * 40, "b" * 40
GSM8K = "740312add88f781978c0658806c59bc2815b9866"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    with answers(tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from huggingface_hub import constants

    hub.ask.cache_clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    yield
    hub.ask.cache_clear()


@cache
def composed(*overrides: str) -> RunConfig:
    return compose(["experiment=smoke", *overrides])


def config(root: Path, *overrides: str) -> RunConfig:
    cfg = copy.deepcopy(composed(*overrides))
    cfg.output_dir = str(root)
    return cfg


def remembered(root: Path) -> dict[str, str]:
    return json.loads((root / "store" / "hub-revisions.json").read_text())


def refusal(cfg: RunConfig) -> list[str]:
    with pytest.raises(Refused) as caught:
        make_plan(cfg)
    return str(caught.value).splitlines()


MODEL = ("model=hf", "model.name_or_path=org/name")


def test_a_name_is_asked_for_once_and_stays_what_it_was(server: FakeHub, tmp_path: Path) -> None:
    server.heads["models/org/name"] = OLD
    first = make_plan(config(tmp_path, *MODEL))
    assert first.stage("base").cfg.model.revision == first.stage("student_base").cfg.model.revision == OLD
    assert remembered(tmp_path) == {"model org/name": OLD}
    assert any(f"model org/name is {OLD}" in note for note in first.warnings)

    server.heads["models/org/name"] = NEW  # somebody pushed
    hub.ask.cache_clear()  # as another process
    server.asked.clear()
    again = make_plan(config(tmp_path, *MODEL))
    assert again.stage("base").cfg.model.revision == OLD and server.asked == []
    assert [s.fingerprint for s in again.stages] == [s.fingerprint for s in first.stages]
    written = make_plan(config(tmp_path, *MODEL, f"model.revision={OLD}"))
    assert [s.fingerprint for s in written.stages] == [s.fingerprint for s in first.stages]
    assert make_plan(config(tmp_path / "other", *MODEL)).stage("base").cfg.model.revision == NEW


def test_branches_and_data_sets_too(server: FakeHub, tmp_path: Path) -> None:
    server.heads |= {"models/org/name@dev": OLD, "datasets/org/rows": NEW}
    plan = make_plan(config(tmp_path, *MODEL, "model.revision=dev", "data=hub", "data.name=org/rows"))
    assert plan.stage("base").cfg.model.revision == OLD
    assert plan.stage("problems").cfg.reasoning.revision == NEW
    assert remembered(tmp_path) == {"model org/name@dev": OLD, "dataset org/rows": NEW}


def test_a_dry_run_asks_and_writes_nothing(server: FakeHub, tmp_path: Path) -> None:
    server.heads["models/org/name"] = OLD
    plan = make_plan(config(tmp_path, *MODEL, "dry_run=true"))
    assert plan.stage("base").cfg.model.revision == OLD
    assert any("the first run remembers it" in note for note in plan.warnings)
    assert not any(tmp_path.iterdir())


def test_what_the_hub_does_not_have(server: FakeHub, tmp_path: Path) -> None:
    (line,) = [line for line in refusal(config(tmp_path, *MODEL)) if line.startswith("model.")]
    assert line.startswith("model.revision: the hub has no model 'org/name' for you -> name another")
    server.heads["models/org/name"] = OLD
    (line,) = [line for line in refusal(config(tmp_path, *MODEL, "model.revision=dev")) if line.startswith("model.")]
    assert line.startswith(
        "model.revision: model 'org/name' has no revision 'dev' -> write a branch, a tag or a commit"
    )


def test_without_a_network_only_what_is_pinned_or_remembered_is_planned(no_network: None, tmp_path: Path) -> None:
    (line,) = refusal(config(tmp_path, "data=hub", "data.name=org/rows"))
    assert line.startswith("data.revision: which commit 'org/rows' is cannot be asked now (")
    assert line.endswith(
        "-> write its commit (40 digits), or name a folder: hf download org/rows --repo-type dataset --local-dir FOLDER"
    )
    make_plan(config(tmp_path, "data=hub", "data.name=org/rows", f"data.revision={OLD}"))
    make_plan(config(tmp_path, *MODEL, f"model.revision={OLD}", "dry_run=true"))
    assert not (tmp_path / "store").exists()
    store = Revisions.of_store(tmp_path / "store", remember=True)
    store._keep("dataset org/rows", NEW)
    assert make_plan(config(tmp_path, "data=hub", "data.name=org/rows")).stage("problems").cfg.reasoning.revision == NEW


def test_names_that_a_yaml_of_the_project_has_are_pinned_by_it(no_network: None, tmp_path: Path) -> None:
    def data(*overrides: str):
        return make_plan(config(tmp_path, *overrides)).stage("problems").cfg.reasoning

    assert data("data=hub", "data.name=openai/gsm8k") == data("data=gsm8k")
    named = data("data=hub", "data.name=openai/gsm8k")
    assert (named.subset, named.revision) == ("main", GSM8K)
    other = data("data=hub", "data.name=org/rows", f"data.revision={OLD}")
    assert (other.subset, other.revision) == (None, OLD)  # nothing of GSM8K's
    assert data("data=hub", "data.name=openai/gsm8k", "data.subset=socratic").subset == "socratic"
    qwen = make_plan(config(tmp_path, "model=hf", "model.name_or_path=Qwen/Qwen3-0.6B-Base")).stage("base")
    assert qwen.cfg.model == make_plan(config(tmp_path, "model=qwen3_0_6b")).stage("base").cfg.model
    student = make_plan(config(tmp_path, "student=hf", "student.name_or_path=Qwen/Qwen3-0.6B-Base"))
    assert student.stage("student_base").cfg.model == qwen.cfg.model


def test_another_student_has_a_revision_of_its_own(server: FakeHub, tmp_path: Path) -> None:
    server.heads["models/org/small"] = NEW
    cfg = config(tmp_path, "model=qwen3_0_6b", "model.trust_remote_code=true", "student.name_or_path=org/small")
    student = make_plan(cfg).stage("student_base").cfg.model
    assert (student.revision, student.trust_remote_code, student.facts) == (NEW, False, {})


def test_a_folder_is_none_of_the_hubs_and_counts_by_content(no_network: None, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.jsonl").write_text((ROOT / "tests/data/gsm8k_sample.jsonl").read_text())
    overrides = ("data=hub", f"data.name={folder}")
    before = make_plan(config(tmp_path, *overrides)).stage("problems")
    assert before.cfg.reasoning.revision is None
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    assert make_plan(config(tmp_path, *overrides)).stage("problems").fingerprint != before.fingerprint


def keep(store: Path, commit: str) -> str:
    return Revisions.of_store(store, remember=True)._keep("model org/name", commit)


def test_two_runs_that_begin_together_agree(tmp_path: Path) -> None:
    commits = [f"{number:040x}" for number in range(24)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.starmap(keep, [(tmp_path, commit) for commit in commits])
    assert set(found) == set(json.loads((tmp_path / "hub-revisions.json").read_text()).values())
    assert len(set(found)) == 1


def test_run_py_over_http(tmp_path: Path) -> None:
    """The real client in a process of its own: HF_ENDPOINT decides where it asks."""
    with serve() as server:
        server.heads["models/org/name"] = OLD
        command = [sys.executable, "run.py", "experiment=smoke", *MODEL, f"output_dir={tmp_path}", "dry_run=true"]
        environment = {**os.environ, "HF_ENDPOINT": server.url}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and f"model org/name is {OLD} on the hub today" in done.stdout, done.stderr
    names = [path for path in server.asked if "org" in path]
    assert names == ["/api/models/org/name"]  # once, although a model and a student have the name
    environment["HF_HUB_OFFLINE"] = "1"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["model.revision"]


def test_repositories_have_keys_that_people_can_read() -> None:
    assert Repository("dataset", "org/rows").key == "dataset org/rows"
    assert Repository("model", "org/name", "v1.0").key == "model org/name@v1.0"
