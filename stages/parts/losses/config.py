"""What an algorithm is made of, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import II

from pipeline.artifacts import Fault


@dataclass
class AlgorithmConfig:
    """One row of the algorithm table (`stages/parts/losses/algorithms.py`) with its knobs."""

    name: str = "grpo"  # row of ALGORITHMS
    beta: float = II("beta")  # weight of the KL to the reference; 0 loads no reference
    epsilon: float = II("epsilon")  # lower clip bound: ratios below 1 - epsilon
    epsilon_high: float | None = None  # upper clip bound: ratios above 1 + epsilon_high; None: epsilon
    reduction: str = "sequence_mean"  # sequence_mean | token_mean | constant_length | sequence_sum_mean
    std: str = "population"  # population | sample | none
    std_epsilon: float = 1e-6
    zero_variance: str = "keep"  # keep | drop | resample (dynamic sampling)
    max_resample_rounds: int = 4
    kl_estimator: str = "k3"  # k1 | k2 | k3 (in the loss); k1 belongs in the reward
    kl_place: str = "loss"  # loss | reward
    dual_clip: float | None = None  # lower bound c on c * A for negative advantages (arXiv:1912.09729)
    ratio_max: float | None = None  # cispo: the absolute upper bound of the ratio (the paper's 1 + epsilon_high)
    mask_truncated: bool = False  # truncated responses carry no policy loss (DAPO's overlong filtering)
    truncated_reward: float | None = None  # reward of a truncated response instead of its score (Dr. GRPO: 0)
    overlong_buffer_tokens: int = 0  # L_cache of the soft overlong penalty (DAPO eq. 13); 0: off
    importance_cap: float | None = None  # cap of exp(old_logps - sampler_logps); None: no correction
    entropy_bonus: float = 0.0
    reference_reset_steps: int = 0  # the reference becomes the policy every n steps (iterative GRPO); 0: never

    def faults(self) -> list[Fault]:
        from stages.parts.losses.checks import algorithm_faults

        return algorithm_faults(self)
