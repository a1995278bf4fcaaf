"""What a plan takes a model's activations for is what autograd keeps."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from pipeline.costs import activations

SHAPES = (
    {"layers": 2, "hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 96},
    {"layers": 3, "hidden_size": 48, "heads": 6, "kv_heads": 2, "head_dim": 32, "intermediate_size": 160},
)
ROWS, LENGTH = 3, 40


def kept(facts: dict, dtype: torch.dtype, checkpointing: bool) -> float:
    """Bytes a token that a forward pass leaves for the backward, each memory once, parameters left out."""
    config = Qwen3Config(
        vocab_size=100,
        hidden_size=facts["hidden_size"],
        intermediate_size=facts["intermediate_size"],
        num_hidden_layers=facts["layers"],
        num_attention_heads=facts["heads"],
        num_key_value_heads=facts["kv_heads"],
        head_dim=facts["head_dim"],
    )
    model = Qwen3ForCausalLM(config).to(dtype)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        model.train()
    parameters = {param.untyped_storage().data_ptr() for param in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.get_decoder()(input_ids=torch.zeros(ROWS, LENGTH, dtype=torch.long), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values()) / (ROWS * LENGTH)


@pytest.mark.parametrize("facts", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_what_autograd_keeps(facts: dict, dtype: torch.dtype):
    expected, _ = activations(facts, dtype.itemsize, checkpointing=False)
    assert kept(facts, dtype, checkpointing=False) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("facts", SHAPES)
def test_checkpointing_keeps_the_hidden_states_alone(facts: dict):
    expected, layer = activations(facts, 4, checkpointing=True)
    assert kept(facts, torch.float32, checkpointing=True) == pytest.approx(expected, rel=0.3)
    whole, _ = activations(facts, 4, checkpointing=False)
    assert expected < whole / 4 and layer > (whole - expected) / facts["layers"]
