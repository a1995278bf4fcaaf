"""Settings that no published recipe has are told, those of a paper are not."""

from __future__ import annotations

import re

import pytest

from pipeline.kinds import kinds
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.published import RANGES, unusual_settings
from stages.parts.policy.config import OptimizerConfig
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig
from stages.rl.config import RLConfig
from stages.sft.config import SFTConfig

HALF_BILLION = 500_000_000


def rl(G: int = 16, learning_rate: float = 1e-6, temperature: float = 1.0, **algorithm) -> RLConfig:
    settings = {"beta": 0.001, "epsilon": 0.2} | algorithm
    return RLConfig(G=G, learning_rate=learning_rate, temperature=temperature, algorithm=AlgorithmConfig(**settings))


def told(cfg, parameters: int | None = HALF_BILLION) -> list[str]:
    return [line.partition("=")[0] for line in unusual_settings(cfg, parameters)]


@pytest.mark.parametrize(
    "cfg",
    [
        rl(epsilon=10.0),  # DeepSeek-R1's first stage
        rl(G=64, beta=0.04),  # DeepSeekMath
        rl(learning_rate=3e-7, beta=0.05),  # Tulu 3
        rl(temperature=0.7),
        rl(name="gspo", beta=0.0, epsilon=3e-4, epsilon_high=4e-4),
        rl(name="cispo", beta=0.0, epsilon=0.9, ratio_max=5.0),  # epsilon is not read there
        PPOConfig(
            G=64, learning_rate=1e-6, critic_learning_rate=5e-6, algorithm=PPOAlgorithmConfig(beta=0.0, epsilon=0.2)
        ),
        SFTConfig(learning_rate=5e-5, optimizer=OptimizerConfig()),
    ],
)
def test_what_papers_have_is_not_unusual(cfg):
    assert told(cfg) == []


def test_everything_outside_is_told_with_its_source():
    lines = unusual_settings(rl(G=2, learning_rate=1e-2, temperature=1.5, beta=0.5, epsilon=0.9), HALF_BILLION)
    keys = ["G", "algorithm.beta", "algorithm.epsilon", "temperature", "learning_rate"]
    assert [line.partition("=")[0] for line in lines] == keys
    assert all(re.search(r"\d{4}\.\d{5}", line) for line in lines)
    assert "10 in DeepSeek-R1's first RL stage" in lines[2]
    assert told(rl(name="gspo", beta=0.0, epsilon=0.2)) == ["algorithm.epsilon"]  # a token's range for a sequence
    assert told(SFTConfig(learning_rate=1e-3)) == ["learning_rate"]


@pytest.mark.parametrize("parameters", [None, 500_000])
def test_rates_of_small_models_are_not_compared(parameters):
    assert told(rl(learning_rate=1e-2), parameters) == []


def test_the_table_names_fields_that_exist():
    for row in RANGES:
        for kind in row.kinds:
            value = kinds()[kind].config
            for name in row.key.split("."):
                assert name in value.__dataclass_fields__, (kind, row.key)
                value = {"rl": AlgorithmConfig, "ppo": PPOAlgorithmConfig}.get(kind, value)
