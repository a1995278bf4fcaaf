"""The distance to the reference, estimated on sampled tokens (Schulman's three estimators).

With d = reference_logp - policy_logp on a token that the policy sampled:

    k1 = -d               unbiased, signed      k2 = d^2 / 2        k3 = exp(d) - d - 1    unbiased, never negative

In the loss (GRPO: k3) the estimate is differentiated: k2's gradient is the true one on-policy, k3's a biased one,
and k1's is zero in expectation, so k1 in the loss is an axis that does nothing. In the reward (RLOO, REINFORCE++,
PPO: k1) it is a number subtracted from what a response earned, and the policy gradient differentiates it.
What differs from the textbook: d is held within +-20; a token that the policy has all but unlearnt otherwise makes
exp(d) overflow.
"""

from __future__ import annotations

from torch import Tensor

from stages.parts.losses.ratios import bounded_log_ratio


def kl_estimate(estimator: str, policy_logps: Tensor, reference_logps: Tensor) -> Tensor:
    """KL(policy || reference) estimated on each token; same shape as the inputs. ValueError on an unknown name."""
    log_ratio = bounded_log_ratio(reference_logps, policy_logps)
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        return log_ratio.expm1() - log_ratio
    raise ValueError(f"unknown KL estimator {estimator!r}")
