"""What comes from outside the pipeline: folders, packages and the hub, each refused while planning where it can be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.artifacts import ARTIFACT_KINDS, FILES
from pipeline.config import RunConfig
from pipeline.hub import Revisions
from pipeline.plan import make_plan
from pipeline.sources import Digests, external_source
from pipeline.store import digest_folder, write_json
from tests.fake_hub import answers
from tests.pipeline.plans import refusal, wire

COMMIT = "c" * 40
NOTHING = (2).to_bytes(8, "little") + b"{}"  # a safetensors file without tensors


def test_a_sealed_folder_elsewhere_can_be_an_input(cfg: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "model"
    folder.mkdir(parents=True)
    output = {"kind": "model", "path": "model", "digest": "d" * 64, "parameters": 7}
    write_json(folder.parent / "artifact.json", {"outputs": {"model": output}})
    wire(cfg, "reasoning_rl", policy=f"path:{folder}")
    source = make_plan(cfg).stage("reasoning_rl").inputs["policy"]
    assert (source.stage, source.path, source.digest, source.facts["parameters"]) == (None, folder, "d" * 64, 7)


def test_a_copied_dataset_keeps_its_facts_while_its_content_is_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{}\n")
    output = {"kind": "dataset:logits", "path": "logits", "digest": digest_folder(folder), "tokenizer_hash": "abc"}
    write_json(folder / "lineage.json", {"output": "logits", "records": [{"outputs": {"logits": output}}]})

    def facts() -> dict:
        store = tmp_path / "store"
        wired = ("teacher_logits", "dataset:logits", f"path:{folder}")
        return external_source(*wired, Digests.of_store(store), Revisions.of_store(store, remember=False)).facts

    assert facts()["tokenizer_hash"] == "abc"
    (folder / "train.jsonl").write_text("{}\n{}\n")
    assert "tokenizer_hash" not in facts()


@pytest.mark.parametrize(
    ("wired", "told"),
    [
        ("path:/nowhere/model", "there is no folder"),
        ("hub:Qwen/Qwen3-0.6B", "names no revision -> write hub:ORG/NAME@COMMIT"),
        ("pip:some-package", "names no version -> write pip:PACKAGE==VERSION"),
    ],
)
def test_external_sources_that_are_not_there_or_not_pinned(cfg: RunConfig, wired: str, told: str) -> None:
    wire(cfg, "cold_start", policy=wired)
    assert told in refusal(cfg)[0]


def test_a_checkpoint_is_no_model(cfg: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "step-00000050").mkdir()
    write_json(tmp_path / "step-00000050" / "checkpoint.json", {})
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path / 'step-00000050'}")
    (line,) = refusal(cfg)
    assert line.startswith("stages.reasoning_rl.inputs.policy: ") and "not a model -> run that stage to its end" in line


def test_a_folder_without_a_model(cfg: RunConfig, tmp_path: Path) -> None:
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path}")
    assert "holds no model: it has no config.json -> name a folder that save_pretrained wrote" in refusal(cfg)[0]


def test_an_adapter_needs_its_base(cfg: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(NOTHING)
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path / 'adapter'}")
    write_json(tmp_path / "adapter" / "adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base")})
    assert "is an adapter without its base: there is no" in refusal(cfg)[0]
    (tmp_path / "base").mkdir()
    make_plan(cfg)
    write_json(tmp_path / "adapter" / "adapter_config.json", {})
    assert "is an adapter that names no base" in refusal(cfg)[0]
    write_json(tmp_path / "adapter" / "adapter_config.json", {"base_model_name_or_path": 5})
    assert "is an adapter that names no base" in refusal(cfg)[0]


def test_a_folder_without_a_dataset(cfg: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    wire(cfg, "cold_start", data=f"path:{tmp_path / 'rows'}")
    assert "is no dataset:conversations: it has no train.jsonl -> name a dataset:conversations" in refusal(cfg)[0]
    (tmp_path / "rows" / "train.jsonl").write_text("{}\n")
    make_plan(cfg)


def test_a_commit_of_the_hub_is_its_content(cfg: RunConfig) -> None:
    wire(cfg, "cold_start", policy=f"hub:org/name@{COMMIT}", data=f"hub:org/rows@{COMMIT}")
    first = make_plan(cfg).stage("cold_start")
    assert str(first.inputs["policy"].path) == first.inputs["policy"].wired == f"hub:org/name@{COMMIT}"
    assert first.inputs["policy"].digest != first.inputs["data"].digest
    wire(cfg, "cold_start", policy=f"hub:org/name@{'d' * 40}")
    assert make_plan(cfg).stage("cold_start").fingerprint != first.fingerprint


def test_a_branch_of_the_hub_is_the_commit_that_it_was(cfg: RunConfig, tmp_path: Path) -> None:
    wire(cfg, "cold_start", policy=f"hub:org/name@{COMMIT}")
    pinned = make_plan(cfg).stage("cold_start").fingerprint
    wire(cfg, "cold_start", policy="hub:org/name@dev")
    with answers(tmp_path / "cache") as hub:
        hub.heads["models/org/name@dev"] = COMMIT
        assert make_plan(cfg).stage("cold_start").fingerprint == pinned
    assert make_plan(cfg).stage("cold_start").inputs["policy"].wired == f"hub:org/name@{COMMIT}"  # remembered


def test_a_branch_that_the_hub_does_not_have(cfg: RunConfig, tmp_path: Path) -> None:
    wire(cfg, "cold_start", policy="hub:org/name@dev")
    with answers(tmp_path / "cache") as hub:
        hub.heads["models/org/name"] = COMMIT
        (line,) = refusal(cfg)
    assert line.startswith("stages.cold_start.inputs.policy: model 'org/name' has no revision 'dev' -> write a branch")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package `carrier` 1.2 with a folder of its own; the folder."""
    folder = tmp_path / "site" / "carrier" / "model"
    folder.mkdir(parents=True)
    for file in ("config.json", "tokenizer.json"):
        (folder / file).write_text("{}")
    (folder / "model.safetensors").write_bytes(NOTHING)
    record = tmp_path / "site" / "carrier-1.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: carrier\nVersion: 1.2\n")
    (record / "RECORD").write_text("carrier/model/config.json,,\ncarrier-1.2.dist-info/METADATA,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    return folder


def test_an_installed_package_feeds_a_port_by_its_one_fitting_folder(cfg: RunConfig, package: Path) -> None:
    wire(cfg, "cold_start", policy="pip:carrier==1.2")
    first = make_plan(cfg).stage("cold_start")
    assert first.inputs["policy"].path == package
    (package / "config.json").write_text('{"layers": 1}')
    assert make_plan(cfg).stage("cold_start").fingerprint != first.fingerprint  # it counts by content


def test_packages_that_cannot_feed_a_port(cfg: RunConfig, package: Path) -> None:
    def told(**ports: str) -> str:
        wire(cfg, "cold_start", **ports)
        (line,) = refusal(cfg)
        return line

    assert "package nowhere is not installed -> run pip install nowhere==1.0" in told(policy="pip:nowhere==1.0")
    other = "carrier 1.2 is installed, not 1.3 -> run pip install carrier==1.3, or write pip:carrier==1.2"
    assert other in told(policy="pip:carrier==1.3")
    none = "pip:carrier==1.2 has 0 folders that are a dataset:conversations -> write path:FOLDER"
    assert none in told(policy="base.model", data="pip:carrier==1.2")


def test_every_kind_of_artifact_says_what_its_folder_holds() -> None:
    assert set(FILES) == set(ARTIFACT_KINDS)
