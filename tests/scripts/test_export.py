"""An exported model: a plain folder that loads, with a card that says what it is."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.lineage import lineage_of
from pipeline.store import digest_folder
from scripts import export as script
from scripts import lineage as lineage_script
from tests.scripts.conftest import write_result


def ask(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["export.py", *map(str, arguments)])
    status = script.main()
    said = capsys.readouterr()
    return status, said.out, said.err


def logits(model, ids=(65, 66, 67)) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


@pytest.mark.parametrize("written", ["runs/sums/stages/tuned", "store/sft-tuned/model"])
def test_it_loads_and_its_card_tells(monkeypatch, capsys, outputs, tmp_path, written):
    target = tmp_path / "deep" / "tuned"
    status, out, _ = ask(monkeypatch, capsys, outputs / written, target)
    assert status == 0
    assert out.startswith(f"{target}: 8 files, ")
    sealed = outputs / "store/sft-tuned/model"
    model = AutoModelForCausalLM.from_pretrained(target)
    assert torch.equal(logits(model), logits(AutoModelForCausalLM.from_pretrained(sealed)))
    assert AutoTokenizer.from_pretrained(target).chat_template

    card = (target / "README.md").read_text()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["sft"]}
    assert "| sums | pass@1 | 75.0% | 50.0 – 100.0 | 4 |" in card
    assert "\n    python run.py pipeline=sums\n" in card
    assert "| tuned | sft | 0 | steps 60, learning_rate 0.005 |" in card
    assert "tuned  sft-tuned  seed 0  commit 0123456\n└─ policy: base.model  base_model-base" in card
    assert not list(target.parent.glob(".*"))  # no scratch folder is left


def test_it_knows_its_lineage_and_is_checked_as_it_is(monkeypatch, capsys, outputs, tmp_path):
    ask(monkeypatch, capsys, outputs / "runs/sums/stages/tuned", tmp_path / "tuned")
    lineage = lineage_of(tmp_path / "tuned")
    assert [record.stage for record in lineage.records] == ["tuned", "base"]
    assert lineage.digest == digest_folder(tmp_path / "tuned") != lineage.own.outputs["model"]["digest"]
    monkeypatch.setattr(sys, "argv", ["lineage.py", "--check", str(tmp_path / "tuned")])
    assert lineage_script.main() == 0
    status, _, _ = ask(monkeypatch, capsys, tmp_path / "tuned", tmp_path / "again")  # from where it was exported to
    assert status == 0
    assert "None is at hand" in (tmp_path / "again/README.md").read_text()


def test_an_empty_folder_is_filled_and_another_left_alone(monkeypatch, capsys, outputs, tmp_path):
    (tmp_path / "empty").mkdir()
    assert ask(monkeypatch, capsys, outputs / "runs/sums/stages/tuned", tmp_path / "empty")[0] == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("years of work")
    status, out, err = ask(monkeypatch, capsys, outputs / "runs/sums/stages/tuned", tmp_path / "full")
    assert (status, out) == (2, "")
    assert err == f"{tmp_path / 'full'}: is there already, and not empty -> name a new folder, or empty this one\n"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_files_that_were_changed_are_not_passed_on(monkeypatch, capsys, outputs, tmp_path):
    shutil.copytree(outputs, tmp_path / "outputs", symlinks=True)
    damaged = tmp_path / "outputs/store/sft-tuned"
    (damaged / "model/config.json").write_text((damaged / "model/config.json").read_text() + " ")
    status, _, err = ask(monkeypatch, capsys, damaged, tmp_path / "target")
    assert (status, err.count("\n")) == (1, 1)
    assert "are not what was sealed" in err
    assert not (tmp_path / "target").exists()


@pytest.fixture
def adapter(outputs, tmp_path) -> Path:
    """The stage `low`: an adapter on base, with weights that do something."""
    from stages.parts.policy.config import LoRAConfig
    from stages.parts.policy.lora import add_lora, save_adapter
    from stages.parts.policy.model import load_policy

    copy = tmp_path / "outputs"
    shutil.copytree(outputs, copy, symlinks=True)
    base = copy / "store/base_model-base/model"
    policy = load_policy(base)
    policy.model = add_lora(policy.model, LoRAConfig(rank=2))
    torch.manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    facts = save_adapter(copy / "store/sft-low/model", policy.model.state_dict(), policy, base)
    write_result(copy, "sums", "low", "sft", {"policy": ("base", "model")}, facts=facts)
    return copy / "runs/sums/stages/low"


def test_an_adapter_is_refused_or_merged(monkeypatch, capsys, adapter, tmp_path):
    capsys.readouterr()  # of making it
    status, _, err = ask(monkeypatch, capsys, adapter, tmp_path / "merged")
    assert (status, err.count("\n")) == (2, 1)
    assert err.endswith("-> add --merge to write whole weights\n")

    assert ask(monkeypatch, capsys, "--merge", adapter, tmp_path / "merged")[0] == 0
    assert not (tmp_path / "merged/adapter_config.json").exists()
    from stages.parts.policy.model import load_policy

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(adapter.resolve().parent / "base_model-base/model")
    assert torch.allclose(logits(merged), logits(load_policy(adapter / "model").model), atol=1e-5)
    assert not torch.allclose(logits(merged), logits(base), atol=1e-2)
    card = (tmp_path / "merged/README.md").read_text()
    assert "It was trained as an adapter; its weights are merged into those of the base." in card
    assert json.loads((tmp_path / "merged/lineage.json").read_text())["digest"] == digest_folder(tmp_path / "merged")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["runs/sums", "target"], "runs/sums: is no model: it has no config.json -> name one of its stages: "),
        (["runs/sums/stages/tuned.eval", "target"], "has no language model, but "),
        (["runs/sums/stages/tunes", "target"], "-> write {outputs}/runs/sums/stages/tuned\n"),
        (["--merge", "runs/sums/stages/tuned", "target"], "is no adapter: its weights are whole -> leave --merge out"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, outputs, tmp_path, arguments, says):
    (*flags, model, target) = arguments
    status, out, err = ask(monkeypatch, capsys, *flags, outputs / model, tmp_path / target)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says.format(outputs=outputs) in err
    assert not (tmp_path / target).exists()
