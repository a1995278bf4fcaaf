"""What stages that train a model say at plan time. Importable without torch."""

from __future__ import annotations

from typing import Any

from pipeline.artifacts import MODEL_FACTS, Fault, Outline
from stages.parts.policy.config import SupervisedStageConfig, TrainedStageConfig


def trained_facts(cfg: TrainedStageConfig, model: dict[str, Any]) -> dict[str, Any]:
    """Facts of the output: the input's, which training keeps, but for dtype and adapter, which it decides."""
    facts = {name: value for name, value in model.items() if name in MODEL_FACTS or name == "tokenizer"}
    facts.pop("dtype", None)  # auto depends on the device that will be there
    if cfg.dtype != "auto":
        facts["dtype"] = cfg.dtype
    facts["adapter"] = cfg.lora.rank > 0 and not cfg.lora.merge
    return facts


def adapter_faults(cfg: TrainedStageConfig, model: dict[str, Any]) -> list[Fault]:
    """An adapter stands beside whole weights: one that stood on another adapter could not be loaded."""
    if cfg.lora.rank > 0 and not cfg.lora.merge and model.get("adapter"):
        problem = "is false, and the model that this stage starts from is an adapter itself"
        return [Fault("lora.merge", problem, "write lora.merge=true, here or for the stage before")]
    return []


def supervised_outline(cfg: SupervisedStageConfig, inputs: dict[str, dict[str, Any]], model_port: str) -> Outline:
    """The part of an outline that sft and distill share."""
    model = inputs.get(model_port, {})
    outline = Outline(
        outputs={"model": trained_facts(cfg, model)},
        parameters=model.get("parameters"),
        steps=cfg.steps,
        tokens=cfg.steps * cfg.examples_per_step * cfg.max_tokens,
    )
    outline.faults += adapter_faults(cfg, model)
    context = model.get("context_length")
    if context is not None and cfg.max_tokens > context:
        problem = f"is {cfg.max_tokens}, but the model reads {context} tokens"
        outline.faults.append(Fault("max_tokens", problem, f"write at most {context}"))
    if "general" not in inputs:
        outline.inert["general_fraction"] = "the port `general` is not wired, so every example comes from `data`"
    elif cfg.general_fraction > 0 and round(cfg.examples_per_step * cfg.general_fraction) == 0:
        outline.inert["general_fraction"] = f"of {cfg.examples_per_step} examples it rounds to none"
    return outline
