"""Low-rank adapters (arXiv:2106.09685) by peft, and the two ways out: merged weights, or an adapter beside its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from stages.parts.policy.config import LoRAConfig
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import Policy, let_others_read

ADAPTER = "default"


def add_lora(model: PreTrainedModel, cfg: LoRAConfig) -> PeftModel:
    """Freeze the model and add adapters, whose up-projection is zero: nothing changes until the first step."""
    return get_peft_model(
        model,
        LoraConfig(
            r=cfg.rank,
            lora_alpha=cfg.alpha,
            lora_dropout=cfg.dropout,
            target_modules=list(cfg.target_modules),
            task_type="CAUSAL_LM",
        ),
    )


@torch.no_grad()
def merged_state(model: torch.nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """HF names, each adapter added to its base weight: W + (alpha / rank) B A. The live model is left alone."""
    scaling = {name: module.scaling[ADAPTER] for name, module in model.named_modules() if hasattr(module, "lora_A")}
    merged = {}
    for name, tensor in state.items():
        if ".lora_" in name:
            continue
        layer = name.removesuffix(".base_layer.weight")
        if layer in scaling and layer != name:
            up, down = state[f"{layer}.lora_B.{ADAPTER}.weight"], state[f"{layer}.lora_A.{ADAPTER}.weight"]
            tensor = (tensor.float() + scaling[layer] * (up.float() @ down.float())).to(tensor.dtype)
        merged[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return merged


def save_adapter(folder: Path, state: dict[str, Tensor], policy: Policy, base: Path) -> dict[str, Any]:
    """The adapter alone, naming the folder of its base; `load_policy` and transformers put the two together. Facts are
    those of the base (which stays where it is), with `adapter` true."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter = get_peft_model_state_dict(policy.model, state_dict=state)
    save_file(
        {name: tensor.cpu().contiguous() for name, tensor in adapter.items()}, folder / "adapter_model.safetensors"
    )
    config = policy.model.peft_config[ADAPTER]
    config.base_model_name_or_path = str(base.resolve())
    config.inference_mode = True
    config.save_pretrained(folder)
    let_others_read(folder)
    policy.tokenizer.save_pretrained(folder)
    return {**model_facts(base), **model_facts(folder)}
