"""A small untrained model and preference pairs that it can learn in seconds."""

from __future__ import annotations

from pathlib import Path

from pipeline.artifacts import Artifact
from stages.parts.data.config import DataConfig
from stages.parts.data.contrasts import pairs_of
from stages.parts.data.pairs import Pair, save_pairs
from stages.parts.data.problems import SPLITS
from stages.parts.data.sources import build_suite
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.model import save_policy
from stages.reward_model.config import RewardModelConfig
from tests.stages.policy.tiny import tiny_policy

CONFIG = RewardModelConfig(
    seed=0,
    steps=50,
    pairs_per_step=16,
    learning_rate=5e-3,
    max_tokens=200,
    tokens_per_microbatch=8000,
    optimizer=OptimizerConfig(schedule="cosine", warmup_fraction=0.1, final_fraction=0.1),
    dtype="float32",
    monitor_every_steps=10,
)
EASY = ("complied", "harm_in_thinking")  # a request to refuse was not refused


def easy_pairs(count: int = 200) -> dict[str, list[Pair]]:
    sizes = {"train_problems": count, "dev_problems": 26, "test_problems": 60, "demonstrations": 1}
    suite = build_suite("safety", DataConfig(source="safety", families=["harmful"], **sizes))
    return {
        split: [pair for problem in suite.splits[split] for pair in pairs_of(problem, 3, 0) if pair.reason in EASY]
        for split in SPLITS
    }


def pair_inputs(folder: Path, splits: dict[str, list[Pair]]) -> dict[str, Artifact]:
    policy = tiny_policy(max_position_embeddings=256)
    facts = save_policy(folder / "model", dict(policy.model.state_dict()), policy)
    save_pairs(folder / "pairs", splits)
    return {
        "policy": Artifact("policy", "model", folder / "model", facts, "", ""),
        "preferences": Artifact("preferences", "dataset:preferences", folder / "pairs", {}, "", ""),
    }
