"""A policy: a causal language model with its tokenizer and its set of end tokens; loading and saving it.

Differs from the textbook: what was loaded is compared with what is on disk (a tensor left at zero or at random is an
error, not a warning: ms-swift#9934), and what was saved is read back and compared with memory. Dropout is switched off:
a policy whose probabilities change from call to call has no importance ratio.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from pipeline.artifacts import StageFailed
from stages.parts.policy.facts import model_facts, trusted


@dataclass
class Policy:
    """A model on its device, and what belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_ids: frozenset[int]  # tokens that end a response (generation config)
    pad_id: int  # any valid id; padding is known by position, never by this
    device: torch.device


def default_device() -> torch.device:
    """This rank's GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cpu")


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device computes in it, else float32 (bf16 has no fast path on most CPUs)."""
    if dtype == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def load_policy(path: Path, dtype: str = "auto", trust_remote_code: bool = False) -> Policy:
    """A policy from a folder that `save_policy` or save_pretrained wrote; in eval mode.

    An adapter (adapter_config.json) is merged into its base. Code of the model's own runs where that is allowed here or
    was where the model came in (facts.trusted). Raises StageFailed where it is needed and may not run, and where a
    tensor is missing, has another shape, or is zero in memory and not on disk.
    """
    path = Path(path)
    device = default_device()
    adapter = path / "adapter_config.json"
    weights = Path(json.loads(adapter.read_text())["base_model_name_or_path"]) if adapter.exists() else path
    trust = trust_remote_code or trusted(weights)
    with _own_code(weights):
        model, report = AutoModelForCausalLM.from_pretrained(
            weights, dtype=resolve_dtype(dtype, device), trust_remote_code=trust, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    check_loaded(model, report, weights)
    if adapter.exists():
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, path).merge_and_unload()
    no_dropout(model)
    return Policy(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        end_ids=_end_ids(model, tokenizer),
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        device=device,
    )


@contextlib.contextmanager
def _own_code(path: Path) -> Iterator[None]:
    """transformers asks for an argument of its own where a model's code must run; people have another."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        remedy = "it runs where a base_model stage takes the model in with model.trust_remote_code=true"
        raise StageFailed(f"{path} needs code of its own, which was not allowed to run: {remedy}") from error


def save_policy(folder: Path, state: dict[str, Tensor], policy: Policy) -> dict[str, Any]:
    """Write consolidated weights (HF names), tokenizer, template and generation config; return MODEL_FACTS.

    `state` is what a train engine's `full_state` gives. Every tensor is read back and compared with memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    # Tied weights travel once: the second name is a view that the reader restores from the config.
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items() if name not in tied_names(model)}
    model.config.dtype = next(iter(kept.values())).dtype
    model.generation_config.eos_token_id = sorted(policy.end_ids)
    model.generation_config.pad_token_id = policy.pad_id
    model.save_pretrained(folder, state_dict=dict(kept))  # it empties what it is given
    policy.tokenizer.save_pretrained(folder)
    let_others_read(folder)
    check_saved(folder, kept)
    return model_facts(folder)


def let_others_read(folder: Path) -> None:
    """safetensors writes for its owner alone; a store may be a team's, whose umask the JSON beside it shows."""
    mode = next(folder.glob("*config.json")).stat().st_mode & 0o777
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)


def tied_names(model: PreTrainedModel) -> set[str]:
    """Names that repeat another tensor (lm_head.weight of a model with tied embeddings)."""
    return set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()


def _end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    end = model.generation_config.eos_token_id
    if end is None:
        end = tokenizer.eos_token_id
    if end is None:
        raise StageFailed("the model names no end token: set eos_token_id in its generation_config.json")
    return frozenset(end if isinstance(end, list) else [end])


def no_dropout(model: PreTrainedModel) -> None:
    """Probabilities that change from call to call have no ratio."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def check_loaded(model: PreTrainedModel, report: dict[str, Any], path: Path) -> None:
    """Raises StageFailed where a tensor is missing, has another shape, or is zero in memory and not on disk."""
    missing = sorted(set(report["missing_keys"]) - tied_names(model))
    if missing:
        raise StageFailed(f"{path} lacks {len(missing)} tensors of its own architecture: {missing[:3]}")
    if report["mismatched_keys"]:
        raise StageFailed(f"{path} has tensors of another shape: {sorted(report['mismatched_keys'])[:3]}")
    zero = {name for name, tensor in model.named_parameters() if tensor.ndim > 1 and not tensor.any()}
    for name in sorted(zero & _names_on_disk(path)):
        if _read(path, name).any():
            raise StageFailed(f"{name} was loaded as zeros although {path} holds other values")


def check_saved(folder: Path, state: dict[str, Tensor]) -> None:
    """Raises StageFailed where the folder's tensors are not those of `state`, bit by bit."""
    written = _names_on_disk(folder)
    if written != set(state):
        differing = sorted(written ^ set(state))
        raise StageFailed(f"{folder}: {len(written)} tensors written of {len(state)}: {differing[:3]}")
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                if not torch.equal(file.get_tensor(name), state[name]):
                    raise StageFailed(f"{folder}: {name} reads back different from what is in memory")


def _names_on_disk(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names |= set(file.keys())
    return names


def _read(folder: Path, name: str) -> Tensor:
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            if name in set(file.keys()):
                return file.get_tensor(name)
    raise KeyError(name)
