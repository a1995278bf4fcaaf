"""PPO with GAE once more, from its papers (1707.06347, 1506.02438), as plain loops over Python floats.

Advantages are written as the sum over the future that defines them, not as the recursion; gradients by hand.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tests.stages.losses.naive import mean, population_std, token_term


@dataclass
class Episode:
    reward: float
    policy: list[float]
    old: list[float]
    reference: list[float]
    values: list[float]
    old_values: list[float]


def random_episodes(seed: int, count: int = 7, longest: int = 7) -> list[Episode]:
    """Ragged; ratios and values on both sides of every bound."""
    draw = random.Random(seed)
    episodes = []
    for _ in range(count):
        policy = [-draw.expovariate(1.0) for _ in range(draw.randint(1, longest))]
        old_values = [draw.gauss(0.4, 0.5) for _ in policy]
        episodes.append(
            Episode(
                draw.choice([0.0, 1.0, draw.random()]),
                policy,
                [p + draw.gauss(0, 0.4) for p in policy],
                [p + draw.gauss(0, 0.5) for p in policy],
                [v + draw.gauss(0, 0.4) for v in old_values],
                old_values,
            )
        )
    return episodes


def token_rewards(episode: Episode, beta: float) -> list[float]:
    paid = [-beta * (old - reference) for old, reference in zip(episode.old, episode.reference, strict=True)]
    return paid[:-1] + [paid[-1] + episode.reward]


def over_their_std(rewards: list[list[float]]) -> list[list[float]]:
    """Whitening of rewards: scale alone, the mean stays."""
    everything = [r for row in rewards for r in row]
    centre, spread = mean(everything), population_std(everything)
    return [[(r - centre) / (spread + 1e-8) + centre for r in row] for row in rewards]


def advantages(rewards: list[float], values: list[float], gamma: float, gae_lambda: float) -> list[float]:
    """A_t = sum over l >= 0 of (gamma * lambda)^l * (r + gamma * V' - V) at t + l; the end is worth nothing."""
    following = [*values[1:], 0.0]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [
        sum((gamma * gae_lambda) ** ahead * delta for ahead, delta in enumerate(deltas[t:])) for t in range(len(deltas))
    ]


def plus(row: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(row, other, strict=True)]


def whitened(rows: list[list[float]]) -> list[list[float]]:
    everything = [a for row in rows for a in row]
    centre, spread = mean(everything), population_std(everything)
    return [[(a - centre) / (spread + 1e-8) for a in row] for row in rows]


def token_weight(reduction: str, episode: Episode, episodes: list[Episode], length_limit: int) -> float:
    if reduction == "token_mean":
        return 1 / sum(len(e.policy) for e in episodes)
    if reduction == "sequence_mean":
        return 1 / len(episodes) / len(episode.policy)
    if reduction == "constant_length":
        return 1 / len(episodes) / length_limit
    return 1 / len(episodes)


def policy_loss(
    episodes: list[Episode], pushed: list[list[float]], reduction: str, low: float, high: float, limit: int
) -> tuple[float, list[list[float]]]:
    """pushed: the advantage of each token. The clipped surrogate is that of GRPO's tokens."""
    total, gradients = 0.0, []
    for episode, row in zip(episodes, pushed, strict=True):
        weight = token_weight(reduction, episode, episodes, limit)
        terms = [token_term("grpo", episode, t, a, low, high, None, 1.0) for t, a in enumerate(row)]
        total += weight * sum(loss for loss, _ in terms)
        gradients.append([weight * slope for _, slope in terms])
    return total, gradients


def value_loss(
    episodes: list[Episode], returns: list[list[float]], reduction: str, clip: float | None, limit: int
) -> tuple[float, list[list[float]]]:
    """0.5 * max((V - R)^2, (V held within V_old +- clip - R)^2) and its derivative by V."""
    total, gradients = 0.0, []
    for episode, targets in zip(episodes, returns, strict=True):
        weight = token_weight(reduction, episode, episodes, limit)
        row = []
        for value, old, target in zip(episode.values, episode.old_values, targets, strict=True):
            error, slope = (value - target) ** 2, value - target
            if clip is not None:
                held = min(max(value, old - clip), old + clip)
                if (held - target) ** 2 > error:  # then the bound is what counts, and a bound has no slope
                    error, slope = (held - target) ** 2, 0.0
            total += weight * 0.5 * error
            row.append(weight * slope)
        gradients.append(row)
    return total, gradients


def finite_difference(loss_of, numbers: list[float], t: int, step: float = 1e-6) -> float:
    kept = numbers[t]
    numbers[t] = kept + step
    above = loss_of()
    numbers[t] = kept - step
    below = loss_of()
    numbers[t] = kept
    assert not math.isnan(above - below)
    return (above - below) / (2 * step)
