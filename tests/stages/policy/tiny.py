"""A real model of 60,000 parameters and data for it, shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from pipeline.tracking import Context
from stages.parts.data.tokenizer import END_IDS, VOCAB_SIZE, build_tokenizer
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.model import Policy

CPU = torch.device("cpu")


def tiny_policy(seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Policy:
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**{**settings, **overrides})).to(dtype).eval()
    model.generation_config = GenerationConfig(eos_token_id=list(END_IDS))
    tokenizer = build_tokenizer(128)
    return Policy(model, tokenizer, frozenset(END_IDS), tokenizer.pad_token_id, CPU)


def ragged(count: int, seed: int = 0, vocabulary: int = 250) -> tuple[list[list[int]], list[list[float]]]:
    """Sequences of 5 to 40 random tokens; the first third of each carries no loss."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 41, (count,), generator=generator).tolist()
    sequences = [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]
    return sequences, [[0.0] * (length // 3) + [1.0] * (length - length // 3) for length in lengths]


def unpack(values_BT: Tensor, batch: TokenBatch) -> Tensor:
    """values_SL: one sequence a row in the order given to pad_batch or pack_batch, zeros behind each."""
    width = max([2, *(length for _, _, length in batch.places)])
    rows = [F.pad(values_BT[row, start : start + length], (0, width - length)) for row, start, length in batch.places]
    return torch.stack(rows) if rows else values_BT[:0, :width]


def context_in(folder: Path, **overrides: Any) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    return Context(stage="stage", workdir=folder, seed=0, **overrides)
