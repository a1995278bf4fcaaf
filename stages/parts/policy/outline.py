"""What stages that train a model say at plan time. Importable without torch."""

from __future__ import annotations

from typing import Any

from pipeline.artifacts import MODEL_FACTS, MODEL_SHAPE, Fault, Outline
from stages.parts.data.fingerprints import hash_template
from stages.parts.data.template import NO_MODES_REMEDY
from stages.parts.data.tokenizer import CHAT_TEMPLATE, MODES_TEMPLATE
from stages.parts.losses.published import unusual_settings
from stages.parts.policy.config import SupervisedStageConfig, TrainedStageConfig
from stages.parts.policy.work import learning


def trained_facts(cfg: TrainedStageConfig, model: dict[str, Any]) -> dict[str, Any]:
    """Facts of the output: the input's, which training keeps, but for dtype and adapter, which it decides."""
    kept = (*MODEL_FACTS, *MODEL_SHAPE, "tokenizer", "trust_remote_code")
    facts = {name: value for name, value in model.items() if name in kept}
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
        warnings=unusual_settings(cfg, model.get("parameters")),
        work=learning(cfg, model, cfg.examples_per_step, cfg.max_tokens),
    )
    outline.faults += adapter_faults(cfg, model)
    if cfg.modes:
        outline.faults += modes_faults(model)
        outline.outputs["model"] |= modes_facts(model)
    else:
        outline.redundant.append("modes")
    context = model.get("context_length")
    if context is not None and cfg.max_tokens > context:
        problem = f"is {cfg.max_tokens}, but the model reads {context} tokens"
        outline.faults.append(Fault("max_tokens", problem, f"write at most {context}"))
    if "general" not in inputs:
        outline.inert["general_fraction"] = "the port `general` is not wired, so every example comes from `data`"
    elif cfg.general_fraction > 0 and round(cfg.examples_per_step * cfg.general_fraction) == 0:
        outline.inert["general_fraction"] = f"of {cfg.examples_per_step} examples it rounds to none"
    return outline


def modes_faults(model: dict[str, Any]) -> list[Fault]:
    """Whether the chat template can ask for an answer without thinking; nothing where that is not known."""
    if model.get("thinking_modes") is False and not modes_facts(model):
        problem = "is true, and the model's chat template cannot express an answer without thinking"
        return [Fault("modes", problem, NO_MODES_REMEDY)]
    return []


def modes_facts(model: dict[str, Any]) -> dict[str, Any]:
    """What changes in a model's facts with the modes: the embedded template for its variant that has both."""
    if model.get("template_hash") != hash_template(CHAT_TEMPLATE):
        return {}
    return {"template_hash": hash_template(MODES_TEMPLATE), "thinking_modes": True}


def vocabulary_faults(student: dict[str, Any], teacher: dict[str, Any], port: str = "teacher") -> list[Fault]:
    """Whether the two read the same tokens. Embedding rows may differ in number (they are padded: Qwen2.5 has 151,936
    and 152,064 for one tokenizer), so real tokens are compared, by hash."""
    for key in ("tokenizer_hash", "tokenizer"):
        if key in student and key in teacher:
            if student[key] == teacher[key]:
                return []
            problem = f"the teacher's tokenizer ({teacher[key]}) is not the student's ({student[key]})"
            remedy = "take a student of the teacher's family; text alone may come from any teacher: distill with "
            return [Fault(f"inputs.{port}", problem, remedy + f"hard_weight=1, and {port} left out")]
    return []


def teacher_faults(student: dict[str, Any], teacher: dict[str, Any]) -> list[Fault]:
    """What a teacher's distributions must agree in with the student that learns them; nothing where it is not known."""
    faults = vocabulary_faults(student, teacher)
    theirs, ours = teacher.get("end_tokens"), student.get("end_tokens")
    if theirs and ours and not set(theirs) & set(ours):
        problem = f"the teacher ends a response with {theirs}, the student with {ours}: it would learn to end unheard"
        remedy = "name the teacher's end tokens in the student's generation_config.json (eos_token_id)"
        faults.append(Fault("inputs.teacher", problem, remedy))
    return faults


def stored_faults(student: dict[str, Any], logits: dict[str, Any]) -> list[Fault]:
    """What stored logits must agree in with the student that learns them: they are found by its tokens."""
    if "path" in logits and "tokenizer_hash" not in logits:
        problem = f"'{logits['path']}' does not record its tokenizer: no lineage.json, or the content was changed"
        return [Fault("inputs.teacher_logits", problem, "name the folder in its run, or copy it whole")]
    faults = vocabulary_faults(student, logits, "teacher_logits")
    ours, theirs = student.get("template_hash"), logits.get("template_hash")
    if not faults and ours and theirs and ours != theirs:
        problem = "was made with another chat template than the student's: the same conversation is other tokens"
        faults.append(Fault("inputs.teacher_logits", problem, "store them with a teacher of the student's template"))
    return faults


def template_warnings(student: dict[str, Any], teacher: dict[str, Any]) -> list[str]:
    """The teacher reads what the student's chat template writes."""
    ours, theirs = student.get("template_hash"), teacher.get("template_hash")
    if ours and theirs and ours != theirs:
        return ["the teacher's chat template is not the student's: it reads prompts of a form that it was never shown"]
    return []
