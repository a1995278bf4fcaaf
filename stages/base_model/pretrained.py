"""A pretrained model taken as it is: loaded, checked against what the plan was told, and written to the output port.

Nothing is trained. What is added is only what every later stage relies on: an explicit set of end tokens that contains
the one the chat template closes a turn with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.artifacts import StageFailed
from pipeline.tracking import Context, Metrics
from stages.base_model.config import BaseModelConfig, ModelConfig
from stages.parts.data.template import end_token_ids, render_conversation
from stages.parts.outside import download
from stages.parts.policy.model import Policy, load_policy, save_policy

_PROBE = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "<think>2 and 2</think>\\boxed{4}"}]


def take(cfg: BaseModelConfig, context: Context) -> Metrics:
    """Fill the output port `model` from a folder or the hub. Raises StageFailed where it has no chat template."""
    if not context.is_main:
        return {}
    policy = load_policy(_folder(cfg.model), cfg.dtype, cfg.model.trust_remote_code)
    if not policy.tokenizer.chat_template:
        raise StageFailed(f"{cfg.model.name_or_path} has no chat template: add a chat_template.jinja to its folder")
    policy.end_ids = policy.end_ids | _closing_tokens(policy)
    facts = save_policy(context.output("model"), policy.model.state_dict(), policy)
    _check_declared(cfg.model, facts)
    context.declare("model", **facts)
    return {"model/parameters": float(facts["parameters"])}


def _folder(model: ModelConfig) -> Path:
    """The local folder, or that of the hub's snapshot at the pinned revision."""
    assert model.name_or_path is not None
    if Path(model.name_or_path).exists():
        return Path(model.name_or_path)
    return download("model", model.name_or_path, model.revision)


def _closing_tokens(policy: Policy) -> frozenset[int]:
    """The end token behind a rendered answer: the model must be stopped by what it will be taught to say."""
    ids, mask = render_conversation(policy.tokenizer, _PROBE)
    ends = end_token_ids(policy.tokenizer)
    last = max(position for position, flag in enumerate(mask) if flag)
    return frozenset({ids[last]} & ends)


def _check_declared(model: ModelConfig, facts: dict[str, Any]) -> None:
    """The YAML's facts made the plan; where the files disagree, the plan was wrong."""
    for name in ("parameters", "vocab_size", "context_length"):
        if name in model.facts and name in facts and model.facts[name] != facts[name]:
            raise StageFailed(f"{model.name_or_path}: {name} is {facts[name]}, its YAML declares {model.facts[name]}")
