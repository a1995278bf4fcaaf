"""The algorithms once more, from their papers, as plain loops over Python floats: no tensors, no autograd.

Everything is written per response and per token, gradients by hand, so that nothing here can share a mistake with
stages/parts/losses. A response is a `Response`; gradients are with respect to its policy log-probs.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass
class Response:
    group: int
    reward: float
    policy: list[float]
    old: list[float]
    sampler: list[float]
    reference: list[float]
    entropy: list[float]


def random_responses(
    seed: int, groups: int = 4, smallest: int = 2, largest: int = 5, longest: int = 7
) -> list[Response]:
    """Ragged groups; ratios far enough from 1 that every branch of a clip is taken."""
    draw = random.Random(seed)
    responses = []
    for group in range(groups):
        for _ in range(draw.randint(smallest, largest)):
            length = draw.randint(1, longest)
            policy = [-draw.expovariate(1.0) for _ in range(length)]
            old = [p + draw.gauss(0, 0.4) for p in policy]
            responses.append(
                Response(
                    group,
                    draw.choice([0.0, 0.5, 1.0, draw.random()]),
                    policy,
                    old,
                    [o + draw.gauss(0, 0.5) for o in old],
                    [p + draw.gauss(0, 0.5) for p in policy],
                    [draw.random() for _ in policy],
                )
            )
    return responses


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def population_std(values: list[float]) -> float:
    return math.sqrt(mean([(v - mean(values)) ** 2 for v in values]))


def advantages(algorithm: str, responses: list[Response], eps: float, rewards: list[float]) -> list[float]:
    result = []
    for i, response in enumerate(responses):
        group = [r for r, other in zip(rewards, responses, strict=True) if other.group == response.group]
        others = [r for j, r in enumerate(rewards) if responses[j].group == response.group and j != i]
        if population_std(group) < 1e-6:
            result.append(0.0)
        elif algorithm in ("grpo", "dapo", "gspo", "cispo"):
            result.append((rewards[i] - mean(group)) / (population_std(group) + eps))
        elif algorithm in ("dr_grpo", "reinforce_pp"):
            result.append(rewards[i] - mean(group))
        elif algorithm == "rloo":
            result.append(rewards[i] - mean(others))
        else:
            raise KeyError(f"{algorithm} is not written down here yet")
    if algorithm == "reinforce_pp":  # with baseline: whitened over the whole batch after the group mean is gone
        centre, spread = mean(result), population_std(result)
        constant = [
            population_std([r for r, o in zip(rewards, responses, strict=True) if o.group == me.group]) < 1e-6
            for me in responses
        ]
        result = [0.0 if c else (a - centre) / (spread + eps) for a, c in zip(result, constant, strict=True)]
    return result


def kl_to_go_advantages(responses: list[Response], beta: float, estimator: str, eps: float) -> list[list[float]]:
    """REINFORCE++ with its KL in the reward: each token is worth the reward less the KL still to come, whitened over
    all tokens of the batch; where prompts have several responses, the reward less its group's mean."""
    in_groups = len({r.group for r in responses}) < len(responses)
    rows = []
    for response in responses:
        baseline = mean([r.reward for r in responses if r.group == response.group]) if in_groups else 0.0
        paid = [kl_term(estimator, o, f)[0] for o, f in zip(response.old, response.reference, strict=True)]
        rows.append([response.reward - baseline - beta * sum(paid[t:]) for t in range(len(paid))])
    everything = [a for row in rows for a in row]
    return [[(a - mean(everything)) / (population_std(everything) + eps) for a in row] for row in rows]


def process_advantages(
    groups: list[int], steps: list[list[float]], ends: list[list[int]], lengths: list[int], eps: float, divide: bool
) -> list[list[float]]:
    """DeepSeekMath, section 4.1.3: all step rewards of a group normalised together, summed from each token onwards."""
    rows = []
    for i, length in enumerate(lengths):
        pool = [reward for j, row in enumerate(steps) if groups[j] == groups[i] for reward in row]
        spread = population_std(pool) + eps if divide else 1.0
        normal = [(reward - mean(pool)) / spread for reward in steps[i]]
        rows.append([sum(n for n, end in zip(normal, ends[i], strict=True) if end >= t) for t in range(length)])
    return rows


def token_term(algorithm, response, t, advantage, low, high, dual, ratio_max):
    """(loss of token t, its derivative by the policy's log-prob of token t; GSPO: of each token, times its length)."""
    if algorithm == "rloo":
        return -advantage * response.policy[t], -advantage
    if algorithm == "cispo":
        weight = min(math.exp(response.policy[t] - response.old[t]), ratio_max)
        return -weight * advantage * response.policy[t], -weight * advantage
    if algorithm == "gspo":
        ratio = math.exp(mean([p - o for p, o in zip(response.policy, response.old, strict=True)]))
    else:
        ratio = math.exp(response.policy[t] - response.old[t])
    if advantage >= 0:
        return (-ratio * advantage, -ratio * advantage) if ratio <= 1 + high else (-(1 + high) * advantage, 0.0)
    if dual is not None and ratio > dual:
        return -dual * advantage, 0.0
    return (-ratio * advantage, -ratio * advantage) if ratio >= 1 - low else (-(1 - low) * advantage, 0.0)


def kl_term(estimator: str, policy: float, reference: float) -> tuple[float, float]:
    if estimator == "k1":
        return policy - reference, 1.0
    if estimator == "k2":
        return 0.5 * (policy - reference) ** 2, policy - reference
    ratio = math.exp(reference - policy)
    return ratio - (reference - policy) - 1, 1 - ratio


def token_weight(reduction: str, response: Response, responses: list[Response], length_limit: int) -> float:
    if reduction == "sequence_mean":
        return 1 / len(responses) / len(response.policy)
    if reduction == "token_mean":
        return 1 / sum(len(r.policy) for r in responses)
    if reduction == "constant_length":
        return 1 / len(responses) / length_limit
    return 1 / len(responses)


def loss_and_gradient(
    algorithm: str,
    reduction: str,
    responses: list[Response],
    *,
    std_epsilon: float = 1e-6,
    beta: float = 0.0,
    estimator: str = "k3",
    place: str = "loss",
    **knobs,
) -> tuple[float, list[list[float]]]:
    """From rewards to the loss and its derivative by each token's log-prob."""
    rewards = [r.reward for r in responses]
    if place == "reward":
        for i, r in enumerate(responses):
            for old, reference in zip(r.old, r.reference, strict=True):
                rewards[i] -= beta * kl_term(estimator, old, reference)[0]
    once = advantages(algorithm, responses, std_epsilon, rewards)
    pushed = [[advantage] * len(r.policy) for advantage, r in zip(once, responses, strict=True)]
    if algorithm == "reinforce_pp" and place == "reward":
        pushed = kl_to_go_advantages(responses, beta, estimator, std_epsilon)
    return loss_of_advantages(
        algorithm, reduction, responses, pushed, beta=beta if place == "loss" else 0.0, estimator=estimator, **knobs
    )


def loss_of_advantages(
    algorithm: str,
    reduction: str,
    responses: list[Response],
    pushed: list[list[float]],
    *,
    epsilon: float,
    epsilon_high: float,
    length_limit: int,
    beta: float = 0.0,
    estimator: str = "k3",
    dual: float | None = None,
    ratio_max: float = 2.0,
    cap: float | None = None,
    entropy_bonus: float = 0.0,
) -> tuple[float, list[list[float]]]:
    """pushed: the advantage of each token; beta: of a KL in the loss."""
    total, gradients = 0.0, []
    for r, row in zip(responses, pushed, strict=True):
        weight = token_weight(reduction, r, responses, length_limit)
        gradients.append([])
        for t, advantage in enumerate(row):
            loss, slope = token_term(algorithm, r, t, advantage, epsilon, epsilon_high, dual, ratio_max)
            if cap is not None:
                correction = min(math.exp(r.old[t] - r.sampler[t]), cap)
                loss, slope = loss * correction, slope * correction
            kl, kl_slope = kl_term(estimator, r.policy[t], r.reference[t])
            total += weight * (loss + beta * kl - entropy_bonus * r.entropy[t])
            gradients[-1].append(weight * (slope + beta * kl_slope))
    return total, gradients
