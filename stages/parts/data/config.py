"""Where problems and demonstrations come from, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from pipeline.artifacts import Fault
from pipeline.config import hub_name, local_path

EMBEDDED = ("reasoning_gym", "general", "helpful", "safety", "translation")
SOURCES = (*EMBEDDED, "jsonl", "hub")
# Rows of verifiers/table.py; a test compares them.
VERIFIERS = ("math", "exact", "task", "refusal", "remark", "chrf")


@dataclass
class DataConfig:
    """One source of problems: embedded tasks (reasoning-gym and our own), a local file, or the hub."""

    source: str = MISSING  # reasoning_gym | general | helpful | safety | jsonl | hub
    seed: int = 0  # of the problems and their splits, apart from the run's seed, so that seeds share a test set
    # embedded
    families: list[str] = field(default_factory=list)  # task families, mixed evenly; empty: all of the suite
    difficulty: int = 1  # the dial: longer chains, larger numbers
    # jsonl, hub
    path: str | None = local_path()  # a .jsonl or .parquet file
    name: str | None = hub_name("dataset", source="hub")  # hub: org/name, or a folder
    revision: str | None = None  # hub: a commit; a branch, a tag or none is asked for once and remembered
    subset: str | None = None  # hub: configuration name ("main" of openai/gsm8k)
    split: str = "train"  # hub: split to read
    columns: dict[str, str] = field(default_factory=dict)  # ours -> theirs: prompt, answer, solution, messages, ...
    instruction: str = ""  # a line added to every prompt ("put your final answer within \boxed{}")
    verifier: str = "math"  # row of VERIFIERS for rows that do not name one
    # sizes; of a file with fewer rows dev and test take what they ask for, 40% at most
    train_problems: int = 4096
    dev_problems: int = 200
    test_problems: int = 500
    demonstrations: int = 512  # worked solutions for a cold start, from training problems

    def faults(self) -> list[Fault]:
        """What is wrong with this source; a file is opened, and its first lines are read."""
        from stages.parts.data.checks import source_faults

        return source_faults(self)
