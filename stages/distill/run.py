"""`distill`: a student learns a teacher's text and, below hard_weight=1, its probabilities, in the loop of `sft`."""

from __future__ import annotations

from functools import partial

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.distill.config import DistillConfig
from stages.distill.soft import soft_step
from stages.parts.data.conversations import load_conversations
from stages.parts.data.template import require_modes
from stages.parts.policy.examples import Source, encode_source
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.outline import vocabulary_faults
from stages.parts.policy.soft_targets import Targets, load_stored, load_teacher
from stages.parts.policy.supervised import train


def run(cfg: DistillConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Train `student` on `data` and, with general_fraction of each step, on `general`."""
    if "teacher" in inputs:  # the plan compared what was declared; these are the folders themselves
        faults = vocabulary_faults(model_facts(inputs["student"].path), model_facts(inputs["teacher"].path))
        if faults:
            raise StageFailed(f"{faults[0].problem}; {faults[0].remedy}")
    policy = load_policy(inputs["student"].path, cfg.dtype)
    if cfg.modes:
        require_modes(policy.tokenizer)
    rows = {"data": load_conversations(inputs["data"].path)}
    if "general" in inputs and cfg.general_fraction > 0:
        rows["general"] = load_conversations(inputs["general"].path)
    sources = [
        encode_source(name, conversations, policy.tokenizer, cfg.max_tokens, cfg.over_length)
        for name, conversations in rows.items()
    ]
    take_step = partial(soft_step, targets=_targets(cfg, inputs, policy, sources)) if cfg.is_soft else None
    return train(cfg, policy, inputs["student"].path, sources, context, take_step)


def _targets(cfg: DistillConfig, inputs: dict[str, Artifact], policy: Policy, sources: list[Source]) -> Targets:
    if "teacher_logits" in inputs:
        return load_stored(inputs["teacher_logits"], policy, inputs["student"].path, sources)
    return load_teacher(inputs["teacher"].path, policy, inputs["student"].path, cfg)
