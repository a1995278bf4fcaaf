"""`base_model`: the model a chain starts from, trained from scratch on generated text or taken from a folder or hub."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import II, MISSING

from pipeline.artifacts import (
    COUNTS,
    MODEL_FACTS,
    MODEL_SHAPE,
    Fault,
    Held,
    Outline,
    Port,
    Work,
    is_count,
    model_folder_fault,
    parameter_count,
)
from pipeline.config import hub_name, shared_by_ranks
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.work import learning

RECIPE_VERSION = 1
INPUTS = {
    "problems": Port("dataset:problems", "held-out problems that the generated text must not contain", optional=True),
}
OUTPUTS = {"model": Port("model", "the base model")}
ARCHITECTURE = ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size", "context_length")
TOKENS_PER_DOCUMENT = 64  # of generated text, an upper bound of the mean


@dataclass
class ModelConfig:
    """A model to start from: `scratch` (an architecture trained here) or `pretrained` (a folder or a hub name)."""

    source: str = MISSING  # scratch | pretrained
    # scratch: a Qwen3 architecture with a character-level tokenizer
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384
    context_length: int = 512
    # pretrained
    name_or_path: str | None = hub_name("model", source="pretrained")
    revision: str | None = None  # a commit; a branch, a tag or none is asked for once and remembered
    trust_remote_code: bool = False
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # parameters, layers, vocab_size, ...: what a plan needs offline

    def faults(self) -> list[Fault]:
        """Range checks, and for a folder whether it is a model with a chat template. Opens no network."""
        if self.source == "scratch" and self.name_or_path:
            problem = f"is '{self.name_or_path}', which source=scratch does not read"
            return [Fault("name_or_path", problem, "write NODE=hf, or leave it out")]
        if self.source == "scratch":
            return _architecture_faults(self)
        if self.source == "pretrained":
            wrong = _wrong_facts(self.facts)
            return _pretrained_faults(self) + [
                Fault(f"facts.{name}", f"is {self.facts[name]!r}", f"write {what}, or leave it out")
                for name, what in wrong.items()
            ]
        return [Fault("source", f"'{self.source}' is unknown", "write scratch or pretrained")]


@dataclass
class BaseModelConfig(TrainedStageConfig):
    kind: str = "base_model"
    model: ModelConfig = II("model")
    documents_per_step: int = shared_by_ranks(64)
    families: list[str] = field(default_factory=list)  # of the generated text; empty: those of the problems
    reasoned_fraction: float = 0.4  # documents that reason step by step; the rest answer at once
    reflection_fraction: float = 0.08  # reasoned documents that look back and check or correct themselves
    careful_fraction: float = 0.7  # reasoned documents that write every step; the rest skip to the last one
    untagged_fraction: float = 0.3  # reasoned documents without <think> tags
    worked_phase: float = 0.5  # share of the steps, the first ones, whose text is nearly all worked examples
    foreign_fraction: float = 0.05  # reasoned documents whose reasoning is in another language than the question

    def faults(self) -> list[Fault]:
        faults = super().faults()
        faults += [Fault(f"model.{fault.key}", fault.problem, fault.remedy) for fault in self.model.faults()]
        if self.model.source != "scratch":
            return faults
        shares = ("reasoned", "reflection", "careful", "untagged", "foreign")
        for name in (*(f"{share}_fraction" for share in shares), "worked_phase"):
            if not 0 <= getattr(self, name) <= 1:
                faults.append(Fault(name, f"is {getattr(self, name)}", "write a share between 0 and 1"))
        if self.documents_per_step < 1:
            faults.append(Fault("documents_per_step", f"is {self.documents_per_step}", "write a positive number"))
        return faults + _family_faults(self.families)


def outline(cfg: BaseModelConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Scratch: all facts are known. Pretrained: those of the folder's JSON, or declared in the model's YAML."""
    if cfg.model.source == "scratch":
        facts = scratch_facts(cfg.model)
        reason = "model.source=scratch is trained here"
        return Outline(
            inert={f"model.{name}": reason for name in ("name_or_path", "revision", "trust_remote_code", "facts")},
            outputs={"model": facts},
            parameters=facts["parameters"],
            steps=cfg.steps,
            tokens=cfg.steps * cfg.documents_per_step * TOKENS_PER_DOCUMENT,
            work=learning(cfg, facts, cfg.documents_per_step, TOKENS_PER_DOCUMENT),
        )
    facts = pretrained_facts(cfg.model)
    reason = "model.source=pretrained keeps the weights as they are"
    trained = ("steps", "learning_rate", "documents_per_step", "families", "reasoned_fraction")
    shape = tuple(f"model.{name}" for name in ARCHITECTURE)
    return Outline(
        outputs={"model": facts},
        parameters=facts.get("parameters"),
        steps=0,
        work=Work(held=(Held("policy", facts, saved="model"),), dtype=cfg.dtype),
        inert=dict.fromkeys(trained + shape, reason),
    )


def scratch_facts(model: ModelConfig) -> dict[str, Any]:
    """Facts of a model that does not exist yet; its tokenizer is deterministic. No torch."""
    from stages.parts.data.tokenizer import tokenizer_facts

    facts: dict[str, Any] = tokenizer_facts() | {name: getattr(model, name) for name in MODEL_SHAPE}
    return facts | {
        "parameters": parameter_count(facts),
        "dtype": "float32",
        "context_length": model.context_length,
        "adapter": False,
    }


def pretrained_facts(model: ModelConfig) -> dict[str, Any]:
    """A folder's own JSON where there is one, else what the model's YAML declares; and whether its code may run."""
    trust = {"trust_remote_code": True} if model.trust_remote_code else {}
    folder = Path(model.name_or_path or "")
    if model.name_or_path and folder.exists() and model_folder_fault(folder) is None:
        return folder_facts(folder) | trust
    known = {*MODEL_FACTS, *MODEL_SHAPE, "tokenizer"} - _wrong_facts(model.facts).keys()
    declared = {name: value for name, value in model.facts.items() if name in known}
    # Models of one family share a tokenizer under many names: a YAML may name the family's.
    return {"tokenizer": model.name_or_path} | declared | {"adapter": False} | trust


def folder_facts(folder: Path) -> dict[str, Any]:
    """What a model's own files say, wherever a pipeline names its folder."""
    from stages.parts.policy.facts import model_facts

    return model_facts(folder)


def _architecture_faults(model: ModelConfig) -> list[Fault]:
    faults = [
        Fault(name, f"is {getattr(model, name)}", "write a positive number")
        for name in ARCHITECTURE
        if getattr(model, name) < 1
    ]
    if not faults and model.heads % model.kv_heads:
        faults.append(Fault("kv_heads", f"is {model.kv_heads} for {model.heads} heads", "write a divisor of heads"))
    if not faults and model.head_dim % 2:
        faults.append(Fault("head_dim", f"is {model.head_dim}", "write an even number: rotary positions come in pairs"))
    return faults


def _pretrained_faults(model: ModelConfig) -> list[Fault]:
    from stages.parts.data.fingerprints import read_template

    name = model.name_or_path
    if not name:
        return [Fault("name_or_path", "is missing", "write NODE.name_or_path=ORG/NAME or a folder")]
    folder = Path(name)
    if not folder.exists():
        if name.startswith(("/", ".", "~")) or name.count("/") != 1:
            return [Fault("name_or_path", f"'{name}' is no folder, and no hub name", "name a folder, or ORG/NAME")]
        return []  # whether it has a template shows when it is loaded
    if fault := model_folder_fault(folder):
        return [dataclasses.replace(fault, key="name_or_path")]
    if read_template(folder) is None:
        return [Fault("name_or_path", f"the tokenizer in '{name}' has no chat template", "add a chat_template.jinja")]
    return []


def _wrong_facts(facts: dict[str, Any]) -> dict[str, str]:
    """Declared fact -> what it would have to be: a plan calculates with them."""
    wrong = {name: "a whole number, 1 or more" for name in COUNTS if name in facts and not is_count(facts[name])}
    tokens = facts.get("end_tokens", [])
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        wrong["end_tokens"] = "a list of token ids"
    return wrong


def _family_faults(families: list[str]) -> list[Fault]:
    from stages.parts.data.families import FAMILIES

    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        return [Fault("families", f"names {', '.join(unknown)}", f"choose from {', '.join(FAMILIES)}")]
    return []
