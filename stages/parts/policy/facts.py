"""What a model folder says about itself, read from its JSON files and safetensors headers alone (no torch).

These are the facts that stages must agree on (pipeline.artifacts.MODEL_FACTS).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pipeline.artifacts import is_count, safetensors_header
from stages.parts.data.fingerprints import read_template, template_hash, tokenizer_hash
from stages.parts.data.modes import expresses_modes

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def model_facts(folder: Path) -> dict[str, Any]:
    """MODEL_FACTS of a folder that save_pretrained wrote; what the folder does not say is left out."""
    facts: dict[str, Any] = {"adapter": (folder / "adapter_config.json").exists()}
    config = _json(folder / "config.json")
    if config:
        inner = config.get("text_config")
        text = inner if isinstance(inner, dict) and inner else config
        names = {"vocab_size": "vocab_size", "max_position_embeddings": "context_length"}
        facts |= {ours: text[theirs] for theirs, ours in names.items() if is_count(text.get(theirs))} | shape(text)
    hashes = {"tokenizer_hash": tokenizer_hash(folder), "template_hash": template_hash(folder)}
    facts |= {name: value for name, value in hashes.items() if value is not None}
    template = read_template(folder)
    if template is not None:
        facts["thinking_modes"] = expresses_modes(template)
    end = _json(folder / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    tokens = end if isinstance(end, list) else [end]
    if tokens and all(isinstance(token, int) for token in tokens):
        facts["end_tokens"] = sorted(set(tokens))
    tensors = tensor_headers(folder)
    if tensors and not facts["adapter"]:
        facts["parameters"] = sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        widest = max(tensors.values(), key=lambda tensor: math.prod(tensor["shape"]))
        facts["dtype"] = DTYPES.get(widest["dtype"], widest["dtype"].lower())
    return facts


def shape(config: dict[str, Any]) -> dict[str, Any]:
    """pipeline.artifacts.MODEL_SHAPE from a config.json; nothing of models that are no decoder of the Llama family, or
    whose layers differ from each other (a list of sizes)."""
    found: dict[str, Any] = {
        "layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "heads": config.get("num_attention_heads"),
        "intermediate_size": config.get("intermediate_size"),
    }
    if not all(map(is_count, found.values())):
        return {}
    heads = found["heads"]
    found["kv_heads"] = config.get("num_key_value_heads") or heads
    found["head_dim"] = config.get("head_dim") or found["hidden_size"] // heads
    return found if all(map(is_count, found.values())) else {}


def trusted(folder: Path) -> bool:
    """Whether code in a model's folder may run. That is said once, where the model comes in (base_model's
    model.trust_remote_code=true), and from there it stands in the manifest of every stage that hands the model on."""
    manifest = _json(folder.resolve().parent / "artifact.json")
    outputs = [output for output in manifest.get("outputs", {}).values() if output["path"] == folder.resolve().name]
    return any(output.get("trust_remote_code", False) for output in outputs)


def tensor_headers(folder: Path) -> dict[str, dict[str, Any]]:
    """name -> {dtype, shape} over all safetensors files of the folder."""
    headers: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        header = safetensors_header(path)
        header.pop("__metadata__", None)
        headers |= header
    return headers


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
