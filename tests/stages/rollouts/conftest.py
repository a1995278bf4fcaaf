"""A tiny random Qwen3, a policy around it, and requests of unlike lengths."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from stages.parts.rollouts.types import Request
from tests.stages.rollouts.tiny import VOCAB, make_policy, sharpen


@pytest.fixture(scope="package")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=96, max_position_embeddings=96, tie_word_embeddings=True,
    )  # fmt: skip
    return sharpen(Qwen3ForCausalLM(config)).eval()


@pytest.fixture(scope="package")
def policy(model):
    return make_policy(model)


@pytest.fixture(scope="package")
def requests_24():
    """Six prompts of unlike lengths, four samples each."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(6, VOCAB, (n,), generator=generator).tolist() for n in (3, 9, 9, 17, 1, 5)]
    return [Request(f"p{i}", j, prompt) for i, prompt in enumerate(prompts) for j in range(4)]
