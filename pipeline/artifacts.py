"""The contract between the driver and the stages: ports, artifacts and what a stage says about itself.

A stage reads `Artifact`s from its input ports and fills its output ports. Before anything runs, its head
(`stages/<kind>/config.py`) tells the plan what will come out of it: an `Outline`. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARTIFACT_KINDS = (
    "model",
    "reward_model",
    "dataset:problems",
    "dataset:conversations",
    "dataset:rollouts",
    "dataset:preferences",
    "dataset:logits",
    "metrics",
)

# What the folder of an artifact holds at least; one from outside is refused without it.
FILES = {
    "model": ("config.json",),
    "reward_model": ("config.json",),
    "dataset:problems": ("train.jsonl", "dev.jsonl", "test.jsonl"),
    "dataset:conversations": ("train.jsonl",),
    "dataset:rollouts": ("train.jsonl",),
    "dataset:preferences": ("train.jsonl",),
    "dataset:logits": ("train.jsonl",),
    "metrics": (),
}

# Facts of a `model` output that a later stage must agree with (design: the hand-off is the subject).
MODEL_FACTS = (
    "parameters",
    "vocab_size",
    "tokenizer_hash",
    "template_hash",
    "thinking_modes",
    "end_tokens",
    "dtype",
    "context_length",
    "adapter",
)


@dataclass(frozen=True)
class Port:
    """One named input or output of a stage kind."""

    kind: str
    doc: str
    optional: bool = False


@dataclass(frozen=True)
class Artifact:
    """One input as a running stage sees it: a sealed folder and the facts declared about it. One from the hub has the
    path "hub:ORG/NAME@COMMIT" until the ranks have brought it here (stages/parts/outside.py)."""

    port: str
    kind: str
    path: Path
    facts: dict[str, Any]
    fingerprint: str
    digest: str


@dataclass(frozen=True)
class Fault:
    """Something that cannot be right. `key` is relative to the stage ("G", "algorithm.epsilon")."""

    key: str
    problem: str
    remedy: str


@dataclass
class Outline:
    """What a stage will do, told before it runs. Unknown numbers stay None; facts that are not known yet
    (the digest of a tokenizer that is still to be built) are left out and checked again when the stage loads."""

    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # output port -> facts
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    parameters: int | None = None
    steps: int | None = None  # optimizer steps
    tokens: int | None = None  # tokens sampled or trained on, an upper bound
    inert: dict[str, str] = field(default_factory=dict)  # config key -> why it does nothing here
    redundant: list[str] = field(default_factory=list)  # inert keys that cannot change one bit: not in the fingerprint
    pinned: dict[str, str] = field(default_factory=dict)  # key -> why the root's knob does not reach it


class StageFailed(RuntimeError):
    """Raised by a stage that did run but whose result must not be used (zero steps, zero supervised tokens,
    a non-finite loss, ...). The message is one clear line for people."""


class Interrupted(RuntimeError):
    """Raised by a stage after it wrote the checkpoint that a stop request asked for."""
