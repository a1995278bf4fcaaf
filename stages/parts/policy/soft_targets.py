"""Where a student finds its teacher's next-token distributions: a teacher that reads along, or what it once stored.

Differs from the textbook: the teacher's logits never exist as a whole. It hands over what stands before its head, and
its logits are made chunk by chunk beside the student's (scoring.py), so a large vocabulary costs no more memory than in
any other loss. The teacher scores, and never generates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pipeline.artifacts import Artifact, StageFailed
from stages.parts.losses.distillation import stored_divergence, token_divergence
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.examples import Source
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.outline import stored_faults, teacher_faults
from stages.parts.policy.reference import Reference, frozen
from stages.parts.policy.scoring import Compare
from stages.parts.policy.stored_logits import StoredLogits, StoredRows, joined, sequence_key


@dataclass(frozen=True)
class Divergence:
    """Which distance of the two distributions, and of which distributions."""

    kind: str  # one of DIVERGENCES
    temperature: float = 1.0
    jsd_weight: float = 0.5


class Targets(Protocol):
    """Gives each position of a batch the teacher's distribution to be compared with."""

    reads_along: bool  # the teacher reads every sequence again; its tokens are part of the cost

    def compare(self, batch: TokenBatch, wanted: Divergence) -> Compare:
        """Collective: once a micro-batch, as often on every rank."""


@dataclass
class OnlineTargets:
    teacher: Reference
    real_vocab: int  # tokens that exist, in the student's rows and in the teacher's
    reads_along = True

    def compare(self, batch: TokenBatch, wanted: Divergence) -> Compare:
        hidden_NH = self.teacher.before_head(batch)

        def of_chunk(logits_CV: Tensor, chunk: slice) -> Tensor:
            return token_divergence(
                wanted.kind,
                self.teacher.logits(hidden_NH[chunk]),
                logits_CV,
                temperature=wanted.temperature,
                jsd_weight=wanted.jsd_weight,
                real_vocab=self.real_vocab,
            )

        return of_chunk


@dataclass
class StoredTargets:
    """What a teacher said when it read these very sequences (`teacher_logits`)."""

    logits: StoredLogits
    temperatures: list[float]
    real_vocab: int  # tokens that the teacher chose from
    reads_along = False

    def compare(self, batch: TokenBatch, wanted: Divergence) -> Compare:
        rows = self._rows(batch)
        ids_NK, place = rows.top_ids_NK, self.temperatures.index(wanted.temperature)
        teacher_NK1 = rows.logps(wanted.temperature, place).to(batch.mask_BT.device)
        ids_NK = ids_NK.to(batch.mask_BT.device)

        def of_chunk(logits_CV: Tensor, chunk: slice) -> Tensor:
            return stored_divergence(
                wanted.kind,
                ids_NK[chunk],
                teacher_NK1[chunk],
                logits_CV,
                temperature=wanted.temperature,
                jsd_weight=wanted.jsd_weight,
                real_vocab=self.real_vocab,
            )

        return of_chunk

    def _rows(self, batch: TokenBatch) -> StoredRows:
        """Of the batch's positions in their order: row by row, and in a packed row sequence by sequence."""
        found = []
        for row, start, length in sorted(batch.places):
            part = slice(start, start + length)
            ids, mask = batch.input_ids_BT[row, part].tolist(), (batch.mask_BT[row, part] > 0).tolist()
            found.append(self.logits.rows(sequence_key(ids, mask)))
        whole = joined(found) if found else None
        if whole is not None and len(whole.top_ids_NK):
            return whole
        return StoredRows(torch.zeros(1, 1).long(), torch.zeros(1, 1), torch.zeros(1, len(self.temperatures)))


def load_stored(artifact: Artifact, student: Policy, student_path: Path, sources: list[Source]) -> StoredTargets:
    """Stored logits for a student and what it will read. Raises StageFailed where they are of another tokenizer or
    template, or lack a sequence."""
    faults = stored_faults(model_facts(student_path), artifact.facts)
    if faults:
        raise StageFailed("; ".join(f"{fault.problem}; {fault.remedy}" for fault in faults))
    logits, vocabulary = StoredLogits(artifact.path), artifact.facts["vocabulary"]
    examples = [example for source in sources for example in source.examples]
    missing = sum(sequence_key(example.ids, example.mask) not in logits for example in examples)
    if missing:
        raise StageFailed(
            f"the stored logits lack {missing} of {len(examples)} conversations: store them again from the same data"
            " (and general), with this stage's max_tokens and over_length"
        )
    if student.model.config.get_text_config().vocab_size < vocabulary:
        raise StageFailed(f"the student has fewer embedding rows than the {vocabulary} tokens of its tokenizer")
    return StoredTargets(logits, list(artifact.facts["temperatures"]), vocabulary)


def load_teacher(path: Path, student: Policy, student_path: Path, cfg: TrainedStageConfig) -> OnlineTargets:
    """The teacher in `path`, partitioned as a reference is. Raises StageFailed where the two read different tokens: the
    plan compared what was declared, these are the folders themselves."""
    faults = teacher_faults(model_facts(student_path), model_facts(path))
    if faults:
        raise StageFailed("; ".join(f"{fault.problem}; {fault.remedy}" for fault in faults))
    policy = load_policy(path, cfg.dtype)
    return OnlineTargets(frozen(policy, cfg, is_teacher=True), real_vocabulary(student, policy))


def real_vocabulary(*policies: Policy) -> int:
    """Tokens that exist: up to the largest id of the tokenizer that every model has a row for. What is behind it is
    padding of embedding matrices, and no token."""
    tokens = max(policies[0].tokenizer.get_vocab().values()) + 1
    return min(tokens, *(int(policy.model.config.get_text_config().vocab_size) for policy in policies))
