"""Each decoder's logits against the plain forward, on the architectures it claims."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.decoders import CachedDecoder, DenseDecoder, ReplayDecoder, fitting_decoder
from stages.parts.rollouts.engine import transformers_engine
from tests.stages.rollouts.tiny import make_policy, sharpen

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = {
    "qwen3": (Qwen3Config(**SMALL), DenseDecoder),
    "qwen2 (biases)": (Qwen2Config(**SMALL), DenseDecoder),
    "llama": (LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE), DenseDecoder),
    "mistral (sliding)": (MistralConfig(**SMALL, sliding_window=6), CachedDecoder),
    "gemma3 (mixed)": (
        Gemma3TextConfig(**SMALL, sliding_window=6, layer_types=["sliding_attention", "full_attention"]),
        CachedDecoder,
    ),
    "gpt2 (learnt positions)": (
        GPT2Config(vocab_size=120, n_embd=32, n_layer=2, n_head=4, n_positions=96), CachedDecoder,
    ),
    "mamba (recurrent)": (
        MambaConfig(vocab_size=120, hidden_size=32, num_hidden_layers=2, state_size=4), ReplayDecoder,
    ),
}  # fmt: skip


@pytest.fixture(params=CONFIGS, scope="module")
def case(request):
    config, expected = CONFIGS[request.param]
    torch.manual_seed(0)
    return sharpen(AutoModelForCausalLM.from_config(config, dtype=torch.float32)).eval(), expected


def test_choice_and_logits(case):
    model, expected = case
    decoder = fitting_decoder(model)
    assert type(decoder) is expected
    lengths = [12, 5, 9]
    ids = torch.randint(6, 120, (3, 30), generator=torch.Generator().manual_seed(2))
    rows, lengths_R = torch.arange(3), torch.tensor(lengths)
    with torch.no_grad():
        decoder.open(4, 30)
        steps = [decoder.prefill(ids[:, :12], lengths_R, rows, torch.tensor([3, 0, 1]))]  # any rows, any order
        decoder.move(torch.tensor([3]), torch.tensor([2]), 12)
        order = [1, 2, 0]  # prompt of rows 0, 1, 2
        for t in range(10):
            positions = lengths_R[order] + t
            logits = decoder.decode(ids[order, positions], positions, int(positions.max()) + 1)
            steps.append(torch.stack([logits[order.index(prompt)] for prompt in range(3)]))
        for prompt, length in enumerate(lengths):
            plain = model(ids[prompt : prompt + 1, : length + 10]).logits[0, length - 1 :]
            ours = torch.stack([step[prompt] for step in steps])
            assert (ours - plain).abs().max() <= 1e-5 * plain.abs().max().clamp(min=1.0)


def test_engine_runs_on_it(case, requests_24):
    model, _ = case
    sampling = SamplingConfig(max_response_tokens=12)
    many = transformers_engine(make_policy(model)).generate(requests_24, sampling, (0, "s", 0))
    few = transformers_engine(make_policy(model), max_rows=5).generate(requests_24, sampling, (0, "s", 0))
    assert [r.response_ids for r in many] == [r.response_ids for r in few]


def test_a_claim_that_is_wrong_is_found_out(model, monkeypatch):
    monkeypatch.setattr(DenseDecoder, "_mlp", lambda self, layer, x: torch.zeros_like(x))
    assert type(fitting_decoder(model)) is CachedDecoder


def test_bfloat16(model):
    half = type(model)(model.config).to(torch.bfloat16).eval()
    assert type(fitting_decoder(half)) is DenseDecoder
