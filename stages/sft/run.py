"""`sft`: supervised fine-tuning. The loop is stages/parts/policy/supervised.py; here is what it is fed."""

from __future__ import annotations

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import load_conversations
from stages.parts.data.template import require_modes
from stages.parts.policy.examples import encode_source
from stages.parts.policy.model import load_policy
from stages.parts.policy.supervised import train
from stages.sft.config import SFTConfig
from stages.sft.few_shot import few_shot_conversations


def run(cfg: SFTConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `policy` on `data` (or what it demonstrates itself) and, with general_fraction of a step, on `general`."""
    policy = load_policy(inputs["policy"].path, cfg.dtype)
    if cfg.modes:
        require_modes(policy.tokenizer)
    sampled: Metrics = {}
    if cfg.source == "few_shot":
        demonstrations, sampled = few_shot_conversations(cfg, policy, inputs, context)
    else:
        demonstrations = load_conversations(inputs["data"].path)
    rows = {"data": demonstrations}
    if "general" in inputs and cfg.general_fraction > 0:
        rows["general"] = load_conversations(inputs["general"].path)
    sources = [
        encode_source(name, conversations, policy.tokenizer, cfg.max_tokens, cfg.over_length)
        for name, conversations in rows.items()
    ]
    return train(cfg, policy, inputs["policy"].path, sources, context) | sampled
