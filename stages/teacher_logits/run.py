"""The teacher reads every conversation once; what it would have said next is stored, with how much was lost.

Ranks share out the files: rank r writes every n-th. Nothing is trained and nothing is resumed: a stop starts anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.artifacts import Artifact
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import load_conversations
from stages.parts.losses.distillation import log_softmax
from stages.parts.policy.batch import aligned_microbatches, pad_batch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.distributed import all_max, all_sum, barrier, gather_objects, stop_if_asked
from stages.parts.policy.examples import Example, encode_source
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.reference import Reference, frozen
from stages.parts.policy.scoring import LOGITS_AT_ONCE
from stages.parts.policy.soft_targets import real_vocabulary
from stages.parts.policy.stored_logits import StoredRows, joined, sequence_key, write_index, write_shard
from stages.teacher_logits.config import BYTES, TeacherLogitsConfig

SEQUENCES_A_FILE = 256


@dataclass
class Lost:
    """What top_k leaves out, summed over positions; of temperature 1."""

    positions: int = 0
    mass: float = 0.0
    most: float = 0.0
    divergence: float = 0.0  # from the teacher to what is known of it: the rest spread evenly over the other tokens


def run(cfg: TeacherLogitsConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Write the output port `logits`; metrics tell its size and its error against full logits."""
    path = inputs["teacher"].path
    policy = load_policy(path, cfg.dtype)
    examples = _examples(cfg, inputs, policy)
    vocabulary = real_vocabulary(policy)
    kept = min(cfg.top_k, vocabulary - 1)
    teacher = frozen(policy, TrainedStageConfig(seed=cfg.seed, engine=cfg.engine, dtype=cfg.dtype), is_teacher=True)
    keys = list(examples)
    files = [keys[start : start + SEQUENCES_A_FILE] for start in range(0, len(keys), SEQUENCES_A_FILE)]
    folder, lost, index, started = context.output("logits"), Lost(), [], time.monotonic()
    barrier()  # rank 0 made the folder
    for turn in range(-(-len(files) // context.world_size)):  # as many turns on every rank
        number = turn * context.world_size + context.rank
        chosen = files[number] if number < len(files) else []
        rows = _read([examples[key] for key in chosen], teacher, cfg, kept, vocabulary, lost)
        if chosen:
            index += write_shard(folder, number, chosen, rows)
        context.progress(min((turn + 1) * context.world_size, len(files)), len(files))
        stop_if_asked(context, "reading")
    index = sorted(gather_objects(index), key=lambda row: (row["file"], row["first"]))
    facts = {name: value for name, value in model_facts(path).items() if name in ("tokenizer_hash", "template_hash")}
    context.declare("logits", rows=len(index), vocabulary=vocabulary, **facts | _recipe(cfg, kept))
    if context.is_main:
        write_index(folder, index)
    tokens = float(sum(len(example.ids) for example in examples.values()))
    metrics = _metrics(lost, vocabulary, kept, cfg) | {"teacher/total_tokens": tokens}
    context.log(0, metrics | {"time/tokens_per_second": tokens / (time.monotonic() - started)})
    return metrics


def _recipe(cfg: TeacherLogitsConfig, kept: int) -> dict[str, Any]:
    return {"top_k": kept, "temperatures": list(cfg.temperatures)}


def _examples(cfg: TeacherLogitsConfig, inputs: dict[str, Artifact], policy: Policy) -> dict[str, Example]:
    """By key, each sequence once, in the order of the data."""
    found: dict[str, Example] = {}
    for port in ("data", "general"):
        if port in inputs:
            rows = load_conversations(inputs[port].path)
            for example in encode_source(port, rows, policy.tokenizer, cfg.max_tokens, cfg.over_length).examples:
                found.setdefault(sequence_key(example.ids, example.mask), example)
    return found


@torch.no_grad()
def _read(
    examples: list[Example], teacher: Reference, cfg: TeacherLogitsConfig, kept: int, vocabulary: int, lost: Lost
) -> list[StoredRows]:
    """Of each example, in order; a collective, so ranks without examples take part. Adds to `lost`."""
    found: dict[int, StoredRows] = {}
    policy = teacher.policy
    for members in aligned_microbatches([len(example.ids) for example in examples], cfg.tokens_per_microbatch):
        chosen = [examples[index] for index in members]
        masks = [[float(flag) for flag in example.mask] for example in chosen]
        batch = pad_batch([example.ids for example in chosen], masks, policy.pad_id, policy.device)
        hidden_NH = teacher.before_head(batch)
        if not chosen:
            continue
        parts = [
            _likeliest(teacher.logits(hidden_CH), cfg, kept, vocabulary, lost)
            for hidden_CH in hidden_NH.split(max(1, LOGITS_AT_ONCE // vocabulary))
        ]
        whole, start = joined(parts), 0
        for index, example in zip(members, chosen, strict=True):  # one example a row, rows in the order of `chosen`
            part = slice(start, start + sum(example.mask[1:]))
            found[index] = StoredRows(whole.top_ids_NK[part], whole.top_logps_NK[part], whole.other_logps_NS[part])
            start = part.stop
    return [found[index] for index in range(len(examples))]


def _likeliest(logits_CV: Tensor, cfg: TeacherLogitsConfig, kept: int, vocabulary: int, lost: Lost) -> StoredRows:
    logps_CV = log_softmax(logits_CV, 1.0, vocabulary)
    top_logps_CK, top_ids_CK = logps_CV.topk(kept, dim=-1)
    others_CV = logps_CV.scatter(-1, top_ids_CK, -torch.inf)
    others_CS = torch.stack([(others_CV / t).logsumexp(dim=-1) for t in cfg.temperatures], dim=-1)
    mass_C = others_CV.exp().sum(dim=-1)
    even_C = mass_C.log() - torch.log(torch.tensor(float(vocabulary - kept)))
    weighed_C = torch.where(others_CV.isinf(), 0.0, others_CV.exp() * (others_CV - even_C[:, None])).sum(dim=-1)
    lost.positions += len(mass_C)
    lost.mass += float(mass_C.double().sum())
    lost.most = max(lost.most, float(mass_C.max()))
    lost.divergence += float(weighed_C.double().sum().clamp(min=0.0))
    return StoredRows(top_ids_CK.cpu(), top_logps_CK.cpu(), others_CS.cpu())


def _metrics(lost: Lost, vocabulary: int, kept: int, cfg: TeacherLogitsConfig) -> Metrics:
    positions, mass, divergence = all_sum([float(lost.positions), lost.mass, lost.divergence])
    most = all_max(round(lost.most * 10**9)) / 10**9
    a_position = BYTES * (2 * kept + len(cfg.temperatures))
    return {
        "logits/positions": positions,
        "logits/bytes": positions * a_position,
        "logits/share_of_full": a_position / (BYTES * vocabulary),  # of full logits in float32
        "error/tail_mass": mass / positions,  # the mean probability of what is not stored
        "error/tail_mass_max": most,
        "error/divergence": divergence / positions,  # nats a position: KL from the teacher to what is known of it
    }
