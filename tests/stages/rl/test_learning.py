"""Every algorithm, as its own YAML has it, teaches a small model to give the answer that is rewarded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.tracking import Context
from stages.parts.losses.algorithms import ALGORITHMS
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.verifiers.config import RewardConfig
from stages.rl.config import RLConfig
from stages.rl.run import run
from tests.stages.digits import digit_inputs, threes

CONF = Path(__file__).parents[3] / "conf" / "algorithm"
CONFIG = RLConfig(
    seed=0,
    steps=36,
    prompts_per_step=4,
    G=8,
    updates_per_rollout=2,
    max_response_tokens=6,
    learning_rate=1.5e-3,
    tokens_per_microbatch=2000,
    reward=RewardConfig(accuracy=1.0, require_box=False),
    monitor_every_steps=100,
    monitor_problems=4,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning")
    return digit_inputs(folder) | {"problems": threes(folder / "threes")}


def algorithm(name: str) -> AlgorithmConfig:
    written = {"beta": 0.001, "epsilon": 0.2, **OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))}
    return AlgorithmConfig(**(written | ({"overlong_buffer_tokens": 2} if name == "dapo" else {})))


def accuracies(cfg: RLConfig, inputs, folder: Path) -> list[float]:
    """Of each rollout."""
    run(cfg, inputs, Context("reasoning_rl", folder, seed=0))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["rollout/accuracy"] for row in rows if "rollout/accuracy" in row]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns(name, inputs, tmp_path):
    """A tenth of the responses is right at first, by chance."""
    found = accuracies(replace(CONFIG, algorithm=algorithm(name)), inputs, tmp_path)
    assert found[0] < 0.2
    assert sum(found[-3:]) / 3 > 0.4


def test_nothing_is_learned_from_shuffled_rewards(inputs, tmp_path):
    shuffled = replace(CONFIG, algorithm=algorithm("grpo"), reward=replace(CONFIG.reward, shuffle=True))
    assert sum(accuracies(shuffled, inputs, tmp_path)[-3:]) / 3 < 0.25
