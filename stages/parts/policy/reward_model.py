"""A reward model: a language model's body with one scalar on the last token of a conversation.

In training it is a body with a value head (value_head.py, without a bias: pairs tell differences only), so that every
engine trains it as it trains a critic. On disk it is transformers' sequence classification with one label, which
`AutoModelForSequenceClassification.from_pretrained` opens. Differs from that class in where it reads: at the last token
by position; transformers looks for the last token that is not the padding id, so the saved padding id is one that no
conversation ends with. The config also holds the mean reward of each axis on held-out pairs (`reward_centres`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.artifacts import StageFailed
from stages.parts.data.pairs import judged_conversation
from stages.parts.data.template import render_conversation
from stages.parts.policy.batch import TokenBatch, pad_batch
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import (
    Policy,
    check_loaded,
    check_saved,
    default_device,
    let_others_read,
    no_dropout,
    resolve_dtype,
)
from stages.parts.policy.value_head import NAME, add_value_head, load_critic

HEAD = "score"  # what transformers calls the head of decoders


@dataclass
class RewardModel:
    """A trained one, ready to score; `policy.model` is the body with its head."""

    policy: Policy
    centres: dict[str, float]  # axis -> mean reward of held-out pairs; 0 where it is not known


def new_reward_model(path: Path, dtype: str = "auto") -> Policy:
    """The body of the language model in `path` with a head that gives 0."""
    return load_critic(path, dtype, bias=False)


def load_reward_model(path: Path, dtype: str = "auto") -> RewardModel:
    """From a folder that `save_reward_model` or transformers wrote. Raises StageFailed where it is no decoder with one
    label, or a tensor is missing."""
    device = default_device()
    model, report = AutoModelForSequenceClassification.from_pretrained(
        path, dtype=resolve_dtype(dtype, device), output_loading_info=True
    )
    check_loaded(model, report, path)
    head = getattr(model, HEAD, None)
    if not isinstance(head, torch.nn.Linear) or head.weight.shape[0] != 1:
        raise StageFailed(f"{path} is no reward model: a decoder with one label and a head named {HEAD} is needed")
    no_dropout(model)
    body = getattr(model, model.base_model_prefix)
    add_value_head(body, bias=head.bias is not None)
    getattr(body, NAME).load_state_dict(head.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(path)
    policy = Policy(body.to(device).eval(), tokenizer, frozenset(), tokenizer.pad_token_id or 0, device)
    return RewardModel(policy, dict(getattr(model.config, "reward_centres", None) or {}))


def save_reward_model(
    folder: Path, state: dict[str, Tensor], policy: Policy, centres: dict[str, float]
) -> dict[str, Any]:
    """Write consolidated weights (`state`: what a train engine's full_state gives), tokenizer and template; return the
    facts of the folder. Every tensor is read back and compared with memory."""
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(policy.model.config)
    config.num_labels, config.reward_centres = 1, centres
    config.eos_token_id = sorted(policy.end_ids)
    config.pad_token_id = _padding(policy)
    config.dtype = next(iter(state.values())).dtype
    with torch.device("meta"):  # its class and its names; the weights are ours
        model = AutoModelForSequenceClassification.from_config(config)
    kept = {_saved_name(name, model): tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    model.save_pretrained(folder, state_dict=dict(kept))
    policy.tokenizer.save_pretrained(folder)
    let_others_read(folder)
    check_saved(folder, kept)
    return model_facts(folder)


def encode_response(tokenizer: Any, messages: list[dict[str, str]], axis: str, response: str) -> list[int]:
    """What the model reads of a response to `messages`, judged on `axis`."""
    return render_conversation(tokenizer, judged_conversation(messages, axis, response))[0]


def reward_batch(sequences: list[list[int]], policy: Policy) -> TokenBatch:
    """Each sequence with one more column behind it, whose mask says: here, the state before this token is asked for."""
    ids = [[*sequence, policy.pad_id] for sequence in sequences]
    return pad_batch(ids, [[0.0] * len(sequence) + [1.0] for sequence in sequences], policy.pad_id, policy.device)


def rewards_of(values_BT: Tensor | None, batch: TokenBatch) -> Tensor:
    """One reward a sequence of `reward_batch`, in its order; `values_BT` is what a Scorer gave for it. No sequences:
    nothing, but with a graph, for a rank that has run out."""
    assert values_BT is not None
    last = [(row, start + length - 1) for row, start, length in batch.places]
    rows, columns = torch.tensor(last, dtype=torch.long, device=values_BT.device).view(-1, 2).unbind(1)
    return values_BT[rows, columns]


def _saved_name(name: str, model: torch.nn.Module) -> str:
    if name.startswith(f"{NAME}."):
        return f"{HEAD}.{name.removeprefix(f'{NAME}.')}"
    return f"{model.base_model_prefix}.{name}"


def _padding(policy: Policy) -> int:
    """An id that no conversation ends with: the tokenizer's own where that is no end token."""
    return next(token for token in (policy.pad_id, 0, 1) if token not in policy.end_ids)
