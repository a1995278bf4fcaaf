"""What a stage will cost, worked out before it runs: memory a rank at its peak, disk and work. Pure functions.

A head says what a stage holds and how large its batches are at full length (`Work`, in artifacts.py); here is what that
takes, by the code that will run (stages/parts/policy, stages/parts/rollouts):

    states       weights, gradients, optimizer: ZeRO's formulas (arXiv:1910.02054), float32 master and moments
    activations  what autograd keeps of a decoder of the Llama family, counted on Qwen3 with saved-tensor hooks
    logits       rows x vocabulary, as often as loss or sampler hold them; in training one chunk of it
    cache        keys and values of the rows that are sampled at once, 2 x layers x kv_heads x head_dim a token

The peak is that of the worst moment: updating, sampling, scoring or writing a checkpoint. Differs from the usual
calculators in that attention takes no memory of length squared (the kernel keeps none) and in what is added on a CPU:
what libraries take beside tensors, and holes in the heap. These numbers are fitted; scripts/bench_costs.py shows
what they are worth on other shapes. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import MODEL_SHAPE, Held, Work, is_count, parameter_count
from pipeline.config import EngineConfig, zero_buffers, zero_stage

MASTERS = 8  # bytes a parameter of Adam's two moments in float32; a float32 master of other weights is 4 more
CHECKPOINTS = 3  # on disk at once: two that are kept and the one being written (stages/parts/policy/checkpoint.py)
CPU_CACHE = 2**31  # bytes that the sampler gives to its rows on a CPU; on a GPU half of what is free

# Fitted on a CPU (the cases fit_* of scripts/bench_costs.py).
RUNTIME = 75 * 2**20  # bytes: what libraries load late, and buffers that are not given back
CPU_IMPORTS = 700 * 2**20  # bytes of a rank's libraries, before a stage begins; not part of its peak
HOLES, MORE_HOLES = 1.2, 1.45  # what activations leave in the heap: those of one micro-batch, of one after the other


@dataclass(frozen=True)
class Costs:
    """Of one stage. None: not known, because a model's shape is not."""

    memory: dict[str, int] | None  # bytes a rank at the worst moment, by what takes them
    moment: str  # holding | updating | syncing | sampling | scoring | saving
    disk: int | None  # bytes of the sealed result
    disk_running: int | None  # bytes while it runs: with its checkpoints
    work: float | None  # floating-point operations over all ranks

    @property
    def peak(self) -> int | None:
        return None if self.memory is None else sum(self.memory.values())


NO_COSTS = Costs(None, "", None, None, None)


def costs(work: Work, engine: EngineConfig, ranks: int, gpu: bool, gpu_memory: int | None = None) -> Costs:
    """`gpu_memory`: bytes of a rank's GPU, which bound the sampler's cache."""
    if not all(has_shape(one.facts) for one in work.held):
        return NO_COSTS
    found = {
        name: {part: round(size) for part, size in parts.items() if size}
        for name, parts in moments(work, engine, ranks, gpu, gpu_memory).items()
    }
    worst = max(found, key=lambda name: sum(found[name].values()))
    size = 2 if is_low_precision(work, gpu) else 4
    sealed = work.output_bytes + sum(size * saved_parameters(one) for one in work.held if one.saved)
    states = sum((4 + MASTERS) * trained_parameters(one) for one in work.held)
    running = sealed + (CHECKPOINTS * states if work.steps else 0)
    return Costs(found[worst], worst, round(sealed), round(running), operations(work, engine))


# ---- models


def has_shape(facts: dict[str, Any]) -> bool:
    """What is there must be right: facts are read from files that others wrote."""
    needed = (*MODEL_SHAPE, "vocab_size", *(["parameters"] if "parameters" in facts else []))
    return all(is_count(facts.get(name)) for name in needed)


def is_tied(facts: dict[str, Any]) -> bool:
    """The nearer of the two counts; tied where the number of parameters is not declared."""
    declared = facts.get("parameters") or 0
    return declared < parameter_count(facts, tied=True) + facts["vocab_size"] * facts["hidden_size"] / 2


def parameters(held: Held) -> int:
    """Declared, or counted; of a body (a critic) without the head."""
    facts = held.facts
    count = facts.get("parameters") or parameter_count(facts, tied=True)
    return count - (0 if not held.is_body or is_tied(facts) else facts["vocab_size"] * facts["hidden_size"])


def trained_parameters(held: Held) -> int:
    """All of them, or those of its adapters (arXiv:2106.09685): rank x (rows + columns) of each matrix."""
    if not held.trained:
        return 0
    if not held.adapter_rank:
        return parameters(held)
    facts = held.facts
    width, queries, keys = (
        facts["hidden_size"],
        facts["heads"] * facts["head_dim"],
        facts["kv_heads"] * facts["head_dim"],
    )
    sides = {"q_proj": width + queries, "o_proj": width + queries, "k_proj": width + keys, "v_proj": width + keys}
    mlp = width + facts["intermediate_size"]
    return held.adapter_rank * facts["layers"] * sum(sides.get(name, mlp) for name in held.adapter_modules)


def saved_parameters(held: Held) -> int:
    return trained_parameters(held) if held.saved == "adapter" else parameters(held)


def states(count: int, stage: int, ranks: int, weights: float = 2, gradients: float = 2, optimizer: float = 12):
    """Bytes a rank of weights, gradients and optimizer states (arXiv:1910.02054, figure 1). The defaults are the
    paper's; ours accumulates gradients in float32."""
    return (
        count * weights / (ranks if stage == 3 else 1),
        count * gradients / (ranks if stage >= 2 else 1),
        count * optimizer / (ranks if stage >= 1 else 1),
    )


def cache_bytes(facts: dict[str, Any], size: int) -> int:
    """Keys and values of one token."""
    return 2 * facts["layers"] * facts["kv_heads"] * facts["head_dim"] * size


# ---- moments


def moments(
    work: Work, engine: EngineConfig, ranks: int, gpu: bool, gpu_memory: int | None
) -> dict[str, dict[str, float]]:
    """Moment -> what takes how many bytes of a rank's memory."""
    size = 2 if is_low_precision(work, gpu) else 4
    held = held_bytes(work, engine, ranks, size, gpu)
    found: dict[str, dict[str, float]] = {"holding": held}
    if work.sequences and (policy := next((one for one in work.held if one.trained), None)):
        found["updating"] = held | updating(work, policy, engine, ranks, size, gpu)
    if "sampler" in held:
        found["syncing"] = held | {"new weights": held["sampler"]}  # gathered for it
    if work.responses:
        free = (gpu_memory - sum(held.values())) / 2 if gpu and gpu_memory else None
        room = free if gpu else CPU_CACHE
        found["sampling"] = held | larger(sampling(work, one, ranks, size, room) for one in work.held if one.samples)
    if work.read_at_once:
        found["scoring"] = held | larger(scoring(work, one, ranks, size, gpu) for one in work.held)
    if work.steps and not gpu:  # files are written from a copy in the machine's own memory
        copied = 4 + (MASTERS if work.writes_checkpoints else 0)
        found["saving"] = held | {"files": copied * sum(trained_parameters(one) for one in work.held)}
    return found


def larger(cases: Iterable[dict[str, float]]) -> dict[str, float]:
    """Of what never is there together, as models that work in turn."""
    return max(cases, key=lambda parts: sum(parts.values()))


def is_low_precision(work: Work, gpu: bool) -> bool:
    """`auto` is bfloat16 on a GPU, float32 on a CPU."""
    return work.dtype == "bfloat16" or (work.dtype == "auto" and gpu)


def held_bytes(work: Work, engine: EngineConfig, ranks: int, size: int, gpu: bool) -> dict[str, float]:
    """What is there all the time."""
    stage = zero_stage(engine, size == 2) if any(one.trained for one in work.held) else 0  # else no engine is at work
    masters = MASTERS if size == 4 and stage == 0 else MASTERS + 4
    parts: dict[str, float] = {"runtime": 0 if gpu else RUNTIME}
    for one in work.held:
        weights, _, optimizer = states(parameters(one), stage, ranks, weights=size)
        _, _, optimizer = states(trained_parameters(one), stage, ranks, optimizer=masters)
        name = "weights" if one.trained or not any(other.trained for other in work.held) else one.role
        off = engine.offload and gpu
        parts[name] = parts.get(name, 0) + (0 if off and one.trained else weights)
        parts["optimizer"] = parts.get("optimizer", 0) + (0 if off else optimizer)
    if stage == 3 and work.responses:
        parts["sampler"] = size * max(parameters(one) for one in work.held if one.samples)  # a whole copy of its own
    if stage == 3:
        parts["gathered"] = size * max(gathered(one) for one in work.held)
    if stage:
        sizes = [zero_buffers(one.facts["hidden_size"], parameters(one)) for one in work.held if one.trained]
        parts["buffers"] = size * sum(each["reduce_bucket_size"] for each in sizes)
    return parts


def gathered(held: Held) -> int:
    """Parameters that ZeRO-3 has whole at once: up to its limit, and a matrix that is larger than that all the same."""
    facts, count = held.facts, parameters(held)
    largest = facts["hidden_size"] * max(facts["vocab_size"], facts["intermediate_size"])
    return max(zero_buffers(facts["hidden_size"], count)["stage3_max_live_parameters"], min(largest, count))


def updating(work: Work, policy: Held, engine: EngineConfig, ranks: int, size: int, gpu: bool) -> dict[str, float]:
    """One micro-batch between forward and backward, and the gradients of those before it; or the end of the backward,
    where activations are gone and all gradients are there."""
    facts = policy.facts
    at_once, rows = rows_of_microbatch(work, work.sequences, ranks)
    tokens = at_once * work.length
    scored = min(at_once * work.scored, max(1, work.logits_at_once // facts["vocab_size"]))
    head = 4 * facts["vocab_size"] * facts["hidden_size"]
    _, gradients, _ = states(trained_parameters(policy), zero_stage(engine, size == 2), ranks, gradients=4)
    kept, layer = activations(facts, size, engine.gradient_checkpointing)
    chunk = 0 if policy.is_body else work.logit_bytes * scored * facts["vocab_size"]
    middle = {
        "gradients": gradients if at_once < rows else 0,
        "activations": kept * tokens * (1 if gpu else MORE_HOLES if at_once < rows else HOLES),
        "logits": max(chunk + (head if chunk else 0), layer * tokens),
    }
    end = {"gradients": gradients + 2 * head}
    return larger((middle, end))


def rows_of_microbatch(work: Work, sequences: int, ranks: int) -> tuple[int, int]:
    """(sequences of one micro-batch, sequences of a rank's share), as stages/parts/policy/batch.py cuts them."""
    mine = max(1, -(-sequences // ranks))
    return min(mine, max(1, work.tokens_per_microbatch // max(1, work.length))), mine


def activations(facts: dict[str, Any], size: int, checkpointing: bool) -> tuple[float, float]:
    """Bytes a token that autograd keeps of all layers, and those that come on top in one layer's backward.

    Of a layer: four tensors of the hidden size in the model's precision and two in float32 (the norms); four of the
    MLP's width; of queries and keys three in the model's precision and one in float32, and as many of values and
    output. Norms and attention add one number a row and head each.
    """
    wide, narrow = facts["hidden_size"], facts["intermediate_size"]
    heads, kv_heads = facts["heads"], facts["kv_heads"]
    layer = (4 * size + 8) * wide + 4 * size * narrow + (3 * size + 4) * facts["head_dim"] * (heads + kv_heads)
    layer += 8 * heads + 4 * kv_heads + 8
    backward = 3 * size * (wide + narrow)
    ends = (size + 4) * wide
    if checkpointing:
        return facts["layers"] * size * wide + ends, layer + backward
    return facts["layers"] * layer + ends, backward


def sampling(work: Work, model: Held, ranks: int, size: int, cache_room: float | None) -> dict[str, float]:
    """Every row at full depth, at the moment at which a token is drawn."""
    facts = model.facts
    columns = work.prompt + work.response
    token = cache_bytes(facts, size)
    room = math.inf if cache_room is None else max(1.0, cache_room / (token * columns))
    rows = min(work.rows_at_once, max(1, -(-work.responses // ranks)), room)
    return {
        "cache": rows * columns * token * (1 + 1 / facts["layers"]),  # one layer's keys and values as attention copies
        "logits": rows * facts["vocab_size"] * (work.drawing_bytes + (2 if size == 2 else 0)),
    }


def scoring(work: Work, model: Held, ranks: int, size: int, gpu: bool) -> dict[str, float]:
    """A forward pass without a graph: one layer's tensors, one chunk of logits and its softmax."""
    facts = model.facts
    at_once, _ = rows_of_microbatch(work, work.read_at_once, ranks)
    scored = min(at_once * work.scored, max(1, work.logits_at_once // facts["vocab_size"]))
    layer = size * (4 * facts["hidden_size"] + 3 * facts["intermediate_size"])
    return {
        "activations": at_once * work.length * layer * (1 if gpu else HOLES),
        "logits": 0 if model.is_body else work.reading_bytes * scored * facts["vocab_size"],
    }


# ---- work


def operations(work: Work, engine: EngineConfig) -> float:
    """Floating-point operations: 2 a parameter and token forward, 4 backward, 2 more where activations are computed
    again; attention 4 x layers x heads x head_dim x length a token and pass on top."""
    if not work.held:
        return 0.0
    passes = (8 if engine.gradient_checkpointing else 6) / 2
    total = 0.0
    for one in work.held:
        attended = 4 * one.facts["layers"] * one.facts["heads"] * one.facts["head_dim"] * work.length / 2
        a_token = 2 * parameters(one) + attended
        total += a_token * (work.trained_tokens * passes if one.trained else work.read_tokens)
        if one.samples:
            total += a_token * work.sampled_tokens
    return total
