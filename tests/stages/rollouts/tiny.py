"""A tiny random Qwen3 and a policy around it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

VOCAB = 120
END_IDS = frozenset({3, 4, 5})


def make_policy(model, end_ids=END_IDS):
    return SimpleNamespace(model=model.eval(), tokenizer=None, end_ids=end_ids, pad_id=0, device=torch.device("cpu"))


def sharpen(model):
    """Random weights give near-uniform logits; larger ones make an error in the cache visible."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model
