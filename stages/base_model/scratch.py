"""A new Qwen3 model with the embedded tokenizer, its weights a function of the seed."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from stages.base_model.config import ModelConfig
from stages.parts.data.tokenizer import END_IDS, PAD_ID, VOCAB_SIZE, build_tokenizer
from stages.parts.policy.model import Policy, default_device

INITIALIZER_RANGE = 0.06  # about 0.7 / sqrt(hidden): at the usual 0.02 so narrow a model starts slowly


def new_policy(model: ModelConfig, seed: int) -> Policy:
    """An untrained policy in float32. Random numbers of the process are left as they were."""
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.context_length,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},  # contexts are short
        initializer_range=INITIALIZER_RANGE,
        bos_token_id=None,
        eos_token_id=sorted(END_IDS),
        pad_token_id=PAD_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen3ForCausalLM(config)
    network.generation_config = GenerationConfig(
        eos_token_id=sorted(END_IDS), pad_token_id=PAD_ID, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return Policy(
        model=network.to(default_device()).eval(),
        tokenizer=build_tokenizer(model.context_length),
        end_ids=frozenset(END_IDS),
        pad_id=PAD_ID,
        device=default_device(),
    )
