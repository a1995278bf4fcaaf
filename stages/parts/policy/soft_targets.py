"""Where a student finds its teacher's next-token distributions: a teacher that reads along, or what it once stored.

Differs from the textbook: the teacher's logits never exist as a whole. It hands over what stands before its head, and
its logits are made chunk by chunk beside the student's (scoring.py), so a large vocabulary costs no more memory than in
any other loss. The teacher scores, and never generates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from pipeline.artifacts import StageFailed
from stages.parts.losses.distillation import token_divergence
from stages.parts.policy.batch import TokenBatch
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.facts import model_facts
from stages.parts.policy.model import Policy, load_policy
from stages.parts.policy.outline import teacher_faults
from stages.parts.policy.reference import Reference, frozen
from stages.parts.policy.scoring import Compare


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
