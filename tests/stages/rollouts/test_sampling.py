"""Noise and the draw: the published generator, the right frequencies, the right log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.sampling import noise_seeds, sample, uniform

MASK = 2**64 - 1


def splitmix64(seed: int, n: int) -> int:
    z = (seed + (n + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_uniform_is_splitmix64():
    # The first output of the published generator for seed 1234567 is 6457827717110365317.
    assert splitmix64(1234567, 0) == 6457827717110365317
    seeds = [1234567, -1, -(2**63), 2**63 - 1, 0]
    for position in (0, 1, 77):
        ours = uniform(torch.tensor(seeds), torch.full((5,), position)).tolist()
        assert ours == [(splitmix64(seed & MASK, position) >> 11) / 2**53 for seed in seeds]


def test_uniform_is_uniform():
    seeds = torch.tensor(noise_seeds((0, "reasoning_rl", 3), [(f"p{i}", j) for i in range(500) for j in range(8)]))
    values = torch.stack([uniform(seeds, torch.full_like(seeds, t)) for t in range(20)])
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean().item() - 0.5) < 0.005
    counts = torch.histc(values.float(), bins=10, min=0, max=1) / values.numel()
    assert (counts - 0.1).abs().max() < 0.005
    neighbours = torch.corrcoef(torch.stack([values[0], values[1]]))[0, 1]
    assert abs(neighbours) < 0.05


def test_seeds_tell_everything_apart():
    keys = [((0, "a", 0), ("p", 0)), ((1, "a", 0), ("p", 0)), ((0, "b", 0), ("p", 0)), ((0, "a", 1), ("p", 0))]
    keys += [((0, "a", 0), ("q", 0)), ((0, "a", 0), ("p", 1))]
    assert len({noise_seeds(key, [row])[0] for key, row in keys}) == len(keys)


def draw(logits: list[float], sampling: SamplingConfig, n: int = 20000) -> torch.Tensor:
    """Frequencies of each token over evenly spaced uniform numbers."""
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens, _ = sample(torch.tensor(logits).expand(n, -1), u, sampling)
    return torch.bincount(tokens, minlength=len(logits)) / n


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_follow_the_temperature(temperature):
    logits = [2.0, 1.0, 0.0, -1.0]
    expected = torch.softmax(torch.tensor(logits) / temperature, dim=-1)
    assert (draw(logits, SamplingConfig(temperature=temperature)) - expected).abs().max() < 1e-3


def test_top_k_keeps_k():
    # softmax([2,1]) = e/(1+e) = 0.731059
    frequencies = draw([0.0, 2.0, 1.0, -1.0], SamplingConfig(top_k=2))
    assert frequencies[0] == 0 and frequencies[3] == 0
    assert frequencies[1].item() == pytest.approx(0.731059, abs=1e-3)


def test_top_p_keeps_the_fewest_that_reach_it():
    logits = [math.log(p) for p in (0.1, 0.5, 0.3, 0.1)]
    frequencies = draw(logits, SamplingConfig(top_p=0.7))  # 0.5 < 0.7 <= 0.5 + 0.3
    assert frequencies[0] == 0 and frequencies[3] == 0
    assert frequencies[1].item() == pytest.approx(0.625, abs=1e-3)
    assert draw(logits, SamplingConfig(top_p=0.4))[1] == 1.0


def test_logps_are_of_the_temperature_before_truncation():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    for sampling in (SamplingConfig(temperature=0.5), SamplingConfig(temperature=0.5, top_k=1, top_p=0.1)):
        token, logp = sample(logits, torch.tensor([0.1], dtype=torch.float64), sampling)
        assert token.item() == 0
        assert logp.item() == pytest.approx(4.0 - math.log(math.exp(4) + math.exp(2) + 1), abs=1e-6)


def test_greedy_takes_the_largest():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    token, logp = sample(logits, torch.zeros(1, dtype=torch.float64), SamplingConfig(temperature=0))
    assert token.item() == 1
    assert logp.item() == pytest.approx(3.0 - math.log(1 + math.exp(3) + math.e), abs=1e-6)


def test_extreme_uniforms_never_draw_what_is_impossible():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, -1)
    tokens, _ = sample(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), SamplingConfig())
    assert tokens.tolist() == [1, 1]
