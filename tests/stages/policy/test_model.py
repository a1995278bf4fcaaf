"""A model's way to disk and back."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.artifacts import MODEL_FACTS, MODEL_SHAPE, StageFailed
from stages.parts.data.tokenizer import END_IDS, VOCAB_SIZE
from stages.parts.policy.model import load_policy, save_policy
from tests.stages.policy.tiny import tiny_policy


def saved(folder, **overrides):
    policy = tiny_policy(**overrides)
    return policy, save_policy(folder, dict(policy.model.state_dict()), policy)


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    policy, facts = saved(tmp_path, tie_word_embeddings=tied)
    loaded = load_policy(tmp_path, "float32")
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    assert loaded.end_ids == frozenset(END_IDS) and not loaded.model.training
    assert set(facts) == {*MODEL_FACTS, *MODEL_SHAPE}
    assert facts["parameters"] == sum(param.numel() for param in policy.model.parameters())
    assert facts["vocab_size"] == VOCAB_SIZE and facts["end_tokens"] == sorted(END_IDS)
    assert (facts["dtype"], facts["context_length"], facts["adapter"]) == ("float32", 128, False)


def test_the_folder_loads_in_plain_transformers_and_generates(tmp_path):
    saved(tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.generate(**ids, max_new_tokens=3).shape[1] > ids["input_ids"].shape[1]


def test_bfloat16_travels_as_such(tmp_path):
    _, facts = saved(tmp_path, dtype=torch.bfloat16)
    assert facts["dtype"] == "bfloat16"
    assert load_policy(tmp_path, "bfloat16").model.dtype == torch.bfloat16


def test_a_missing_tensor_is_an_error(tmp_path):
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageFailed, match="lacks 1 tensors"):
        load_policy(tmp_path)


def test_saving_another_set_of_tensors_is_an_error(tmp_path):
    """What is written is read back and compared with memory."""
    policy = tiny_policy()
    state = dict(policy.model.state_dict())
    state["model.norm.weight"] = state["model.norm.weight"] * float("nan")  # never equal to itself
    with pytest.raises(StageFailed, match=r"model\.norm\.weight reads back different"):
        save_policy(tmp_path, state, policy)


def test_a_model_without_end_token_is_refused(tmp_path):
    saved(tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    tokenizer.pop("eos_token")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with pytest.raises(StageFailed, match="names no end token"):
        load_policy(tmp_path)
