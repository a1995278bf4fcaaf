"""The contract between the driver and the stages: ports, artifacts and what a stage says about itself.

A stage reads `Artifact`s from its input ports and fills its output ports. Before anything runs, its head
(`stages/<kind>/config.py`) tells the plan what will come out of it: an `Outline`. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

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

# Of a model's folder: the files that are read as JSON objects, those of which one makes a tokenizer, those with weights
INDEX = "model.safetensors.index.json"
MODEL_JSON = (
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    INDEX,
)
TOKENIZERS = ("tokenizer*", "vocab.*", "*.model")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
SAVED = "name a folder that save_pretrained wrote"

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


# What else a plan needs to know of a model, to tell what it costs (pipeline/costs.py): a decoder of the Llama family.
MODEL_SHAPE = ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size")
COUNTS = (*MODEL_SHAPE, "parameters", "vocab_size", "context_length")  # facts that are whole numbers, 1 or more


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def parameter_count(facts: dict[str, Any], tied: bool = True) -> int:
    """Of a Qwen3 architecture: no biases, norms on queries and keys; `tied`: both embeddings are one matrix."""
    width, head = facts["hidden_size"], facts["head_dim"]
    attention = width * head * (2 * facts["heads"] + 2 * facts["kv_heads"]) + 2 * head
    layer = attention + 3 * width * facts["intermediate_size"] + 2 * width
    return facts["vocab_size"] * width * (1 if tied else 2) + facts["layers"] * layer + width


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


@dataclass(frozen=True)
class Held:
    """A model that a stage has in memory while it works."""

    role: str  # policy | critic | reference | teacher | reward model
    facts: dict[str, Any]
    trained: bool = False
    samples: bool = False  # responses are sampled from it
    saved: str = ""  # what of it becomes an output: model | adapter
    is_body: bool = False  # without a language-model head
    adapter_rank: int = 0  # only adapters are trained, in these modules of every layer
    adapter_modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """The sizes that a stage's costs follow from (pipeline/costs.py), at the full length that its configuration allows.
    Sequences and tokens are those of all ranks together."""

    held: tuple[Held, ...] = ()
    dtype: str = "auto"
    # training, and passes without a graph
    steps: int = 0  # optimizer steps
    sequences: int = 0  # that one optimizer step learns from
    read_at_once: int = 0  # sequences that are scored together, without a graph
    length: int = 0  # tokens of a sequence
    scored: int = 0  # of them: whose log-probs are wanted
    tokens_per_microbatch: int = 0
    logits_at_once: int = 0  # elements
    logit_bytes: int = 12  # that one logit takes at the peak of a loss, with what is computed from it
    reading_bytes: int = 8  # the same without a graph
    writes_checkpoints: bool = True
    # sampling
    responses: int = 0  # that are asked for together
    prompt: int = 0  # tokens; an assumption
    response: int = 0  # tokens
    rows_at_once: int = 0
    drawing_bytes: int = 24  # that one logit takes where a token is drawn
    # over the whole stage
    trained_tokens: int = 0
    read_tokens: int = 0  # by models that are not trained
    sampled_tokens: int = 0
    output_bytes: int = 0  # of the sealed result, beside models


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
    work: Work | None = None  # what it costs follows from this; None: no model is at work
    inert: dict[str, str] = field(default_factory=dict)  # config key -> why it does nothing here
    redundant: list[str] = field(default_factory=list)  # inert keys that cannot change one bit: not in the fingerprint
    pinned: dict[str, str] = field(default_factory=dict)  # key -> why the root's knob does not reach it


class StageFailed(RuntimeError):
    """Raised by a stage that did run but whose result must not be used (zero steps, zero supervised tokens,
    a non-finite loss, ...). The message is one clear line for people."""


class Interrupted(RuntimeError):
    """Raised by a stage after it wrote the checkpoint that a stop request asked for."""


def model_folder_fault(path: Path) -> Fault | None:
    """Why a folder cannot be loaded as a model, as far as its files tell (`key` is left for the caller)."""
    if (path / "checkpoint.json").exists():
        problem = f"'{path}' is a checkpoint from which an unfinished stage resumes, not a model"
        return Fault("", problem, "run that stage to its end and name its output, STAGE.model or path:.../model")
    if fault := _broken_json(path):
        return fault
    if (path / "adapter_config.json").exists():
        base = adapter_base(path)
        if not isinstance(base, str):
            return Fault("", f"'{path}' is an adapter that names no base", "add base_model_name_or_path to its config")
        if not Path(base).exists() and (Path(base).is_absolute() or base.count("/") != 1):
            problem = f"'{path}' is an adapter without its base: there is no '{base}'"
            remedy = "bring the base back, or train with lora.merge=true, which needs none"
            return Fault("", problem, remedy)
    elif not (path / "config.json").exists():
        return Fault("", f"'{path}' holds no model: it has no config.json", SAVED)
    elif not _holds(path, TOKENIZERS):
        return Fault("", f"'{path}' has no tokenizer", "save the model's tokenizer there too, with save_pretrained")
    if not _holds(path, WEIGHTS):
        return Fault("", f"'{path}' has no weights ({' or '.join(WEIGHTS)})", SAVED)
    for file in _shards(path) | set(path.glob("*.safetensors")):
        if not _has_header(file):
            remedy = "fetch its content (git lfs pull where it is a pointer), or copy the folder again"
            return Fault("", f"'{file}' is no safetensors file", remedy)
    return None


def _shards(path: Path) -> set[Path]:
    """The files that the index of a large model names; one that did not arrive is found missing."""
    index = path / INDEX
    named = json.loads(index.read_bytes()).get("weight_map", {}) if index.exists() else {}
    return {path / str(name) for name in named.values()}


def safetensors_header(file: Path) -> dict[str, Any]:
    """name -> {dtype, shape, ...} of a safetensors file, from its beginning: eight bytes of length, then JSON. Raises
    OSError, or ValueError where it is none."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size)) if size <= file.stat().st_size - 8 else None
    if not isinstance(header, dict):
        raise ValueError(f"'{file}' does not begin with a header")
    return header


def _has_header(file: Path) -> bool:
    try:
        safetensors_header(file)
    except (OSError, ValueError):  # a link to nowhere, a folder, a pointer to what was not fetched
        return False
    return True


def _broken_json(path: Path) -> Fault | None:
    """A file of a model's folder that must be a JSON object and is none."""
    for file in (path / name for name in MODEL_JSON if (path / name).exists()):
        if not _is_object(file, file.stat().st_mtime_ns, file.stat().st_size):
            return Fault("", f"'{file}' is not a JSON object", "mend it, or copy the folder again")
    return None


@functools.lru_cache(64)
def _is_object(file: Path, *state: int) -> bool:
    """Once per state of a file: a tokenizer may have ten megabytes, and every stage that begins with it asks."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def _holds(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in path.glob(pattern))


def adapter_base(path: Path) -> str | None:
    """The folder or hub name of the model that an adapter belongs to."""
    return json.loads((path / "adapter_config.json").read_text()).get("base_model_name_or_path")
