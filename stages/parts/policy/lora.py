"""Low-rank adapters (arXiv:2106.09685) by peft, and the two ways out: merged weights, or an adapter beside its base."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedModel

from stages.parts.policy.config import LoRAConfig

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
