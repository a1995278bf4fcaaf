"""A model's own code runs in every stage where it was allowed where the model came in, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import dynamic_module_utils

from pipeline.artifacts import StageFailed
from stages.base_model.config import BaseModelConfig, ModelConfig, outline
from stages.base_model.run import run
from stages.parts.policy.model import load_policy, save_policy
from stages.parts.policy.outline import trained_facts
from tests.stages.policy.tiny import context_in, tiny_policy

CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "of_its_own"

class OwnForCausalLM(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What somebody has put on the hub."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    policy, folder = tiny_policy(), tmp_path / "theirs"
    save_policy(folder, policy.model.state_dict(), policy)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "of_its_own", "auto_map": own}))
    (folder / "own.py").write_text(CODE)
    return folder


def seal(workdir: Path, facts: dict) -> Path:
    """The manifest as the driver writes it, less what is of no interest here."""
    (workdir / "artifact.json").write_text(json.dumps({"outputs": {"model": {"path": "model", **facts}}}))
    return workdir / "model"


def test_it_runs_in_every_stage_once_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    cfg = BaseModelConfig(seed=0, model=ModelConfig("pretrained", name_or_path=str(folder), trust_remote_code=True))
    run(cfg, {}, context_in(tmp_path / "base"))
    facts = outline(cfg, {}).outputs["model"]
    base = load_policy(seal(tmp_path / "base", facts))
    assert type(base.model).__name__ == "OwnForCausalLM"
    save_policy(tmp_path / "trained" / "model", base.model.state_dict(), base)  # as every stage that trains does
    handed_on = seal(tmp_path / "trained", trained_facts(cfg, facts))
    assert (handed_on / "own.py").read_text() == CODE
    assert type(load_policy(handed_on).model).__name__ == "OwnForCausalLM"


def test_it_runs_nowhere_else(folder: Path, tmp_path: Path) -> None:
    cfg = BaseModelConfig(seed=0, model=ModelConfig("pretrained", name_or_path=str(folder)))
    with pytest.raises(StageFailed, match=r"needs code of its own.*model\.trust_remote_code=true"):
        run(cfg, {}, context_in(tmp_path / "base"))
    with pytest.raises(StageFailed, match=r"needs code of its own"):
        load_policy(seal(folder.rename(tmp_path / "model").parent, {"kind": "model"}))
