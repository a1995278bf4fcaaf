"""What an algorithm is made of, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import II

from pipeline.artifacts import Fault

DIVERGENCES = ("forward_kl", "reverse_kl", "jsd")  # of a teacher's distribution and a student's (distillation.py)


@dataclass
class LengthRules:
    """What a response's length does to its reward and its place in the loss, whatever the algorithm."""

    mask_truncated: bool = False  # truncated responses carry no loss (DAPO's overlong filtering)
    truncated_reward: float | None = None  # reward of a truncated response in the place of its score (Dr. GRPO: 0)
    overlong_buffer_tokens: int = 0  # L_cache of the soft overlong penalty (DAPO Eq. 13); 0: off

    def faults(self) -> list[Fault]:
        """What cannot be right in this config alone; keys are relative to it ("epsilon")."""
        return []


@dataclass
class AlgorithmConfig(LengthRules):
    """One row of the algorithm table (`stages/parts/losses/algorithms.py`) with the knobs that cut across rows."""

    name: str = "grpo"  # row of ALGORITHMS
    beta: float = II("beta")  # weight of the KL to the reference; 0 loads no reference
    epsilon: float = II("epsilon")  # lower clip bound: ratios below 1 - epsilon
    epsilon_high: float | None = None  # upper clip bound: ratios above 1 + epsilon_high; None: epsilon
    reduction: str = "sequence_mean"  # sequence_mean | token_mean | constant_length | sequence_sum_mean
    std: str = "population"  # population | sample | none: what a group's centred rewards are divided by
    std_epsilon: float = 1e-6  # added to that std
    zero_variance: str = "keep"  # groups of equal rewards: keep their KL term | drop | resample (dynamic sampling)
    max_resample_rounds: int = 4  # resample: more rounds of sampling a rollout, at most
    kl_estimator: str = "k3"  # k1 | k2 | k3; k1 in the loss has no expected gradient, its place is the reward
    kl_place: str = "loss"  # loss: differentiated | reward: subtracted from what a response earned
    dual_clip: float | None = None  # c > 1: the loss of A < 0 is held at -c * A once the ratio passes c (1912.09729)
    ratio_max: float | None = None  # cispo: the absolute upper bound of the ratio (the paper's 1 + epsilon_high)
    importance_cap: float | None = None  # cap of exp(old_logps - sampler_logps), 2.0; None: no correction
    entropy_bonus: float = 0.0  # weight of the policy's entropy, in nats a token
    reference_reset_steps: int = 0  # the reference becomes the policy every n steps (iterative GRPO); 0: never

    def faults(self) -> list[Fault]:
        from stages.parts.losses.checks import algorithm_faults

        return algorithm_faults(self)
