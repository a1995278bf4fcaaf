"""`sft`: supervised fine-tuning. The loop is stages/parts/policy/supervised.py; here is what it is fed."""

from __future__ import annotations

from pathlib import Path

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import load_conversations
from stages.parts.policy.examples import encode_source
from stages.parts.policy.model import load_policy
from stages.parts.policy.supervised import train
from stages.sft.config import SFTConfig


def run(cfg: SFTConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `policy` on `data` and, with general_fraction of each step, on `general`."""
    policy = load_policy(inputs["policy"].path, cfg.dtype)
    rows = {"data": load_conversations(inputs["data"].path)}
    if "general" in inputs and cfg.general_fraction > 0:
        rows["general"] = load_conversations(inputs["general"].path)
    sources = [
        encode_source(name, conversations, policy.tokenizer, cfg.max_tokens, cfg.over_length)
        for name, conversations in rows.items()
    ]
    return train(cfg, policy, Path(inputs["policy"].path), sources, context)
