"""From logits to tokens: counter-based noise, truncation of the distribution, log-probabilities.

Differs from the textbook in two ways. There is no random generator with a state: the uniform number of a token is a
hash of (seed, stage, step, problem id, sample index, position), so that a response does not depend on what else is in
the batch, on the order of requests, or on the rank (splitmix64: Steele, Lea and Flood, OOPSLA 2014). And the inverse
of the cumulative distribution is taken in 40-bit fixed point: integer sums are exact and the same on every device,
and CUDA has no deterministic cumulative sum of floats.

R rows, V vocabulary.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from stages.parts.rollouts.config import SamplingConfig

FIXED_POINT = float(2**40)  # probabilities below 1e-12 are never drawn


def noise_seeds(noise_key: tuple[int, str, int], rows: list[tuple[str, int]]) -> list[int]:
    """One signed 64-bit counter seed per (problem id, sample index) under noise_key = (seed, stage name, step)."""
    prefix = "\0".join(map(str, noise_key))
    digests = (hashlib.blake2b(f"{prefix}\0{name}\0{index}".encode(), digest_size=8).digest() for name, index in rows)
    return [int.from_bytes(digest, "little", signed=True) for digest in digests]


def uniform(seeds_R: Tensor, positions_R: Tensor) -> Tensor:
    """Uniform float64 in [0, 1) for each row's token number `positions_R` (int64, from 0): splitmix64's output
    number `position` of a stream that starts at `seed`."""
    z = seeds_R + (positions_R + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return _shift(z ^ _shift(z, 31), 11).double() * 2.0**-53


def sample(logits_RV: Tensor, uniforms_R: Tensor, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Token ids (int64) and their log-probabilities (float32), both [R].

    The log-probabilities are those of the whole distribution at the sampling temperature, before top-k and top-p cut
    it: what a trainer that scores at this temperature computes. Temperature 0 takes the largest logit, and its
    log-probability is of temperature 1.
    """
    logits_RV = logits_RV.float()
    if sampling.temperature not in (0.0, 1.0):
        logits_RV = logits_RV / sampling.temperature
    logps_RV = torch.log_softmax(logits_RV, dim=-1)
    if sampling.temperature == 0.0:
        tokens_R = logps_RV.argmax(dim=-1)
    elif sampling.top_k > 0 or sampling.top_p < 1.0:
        tokens_R = _draw_truncated(logps_RV.exp(), uniforms_R, sampling)
    else:
        tokens_R = _draw((logps_RV.exp() * FIXED_POINT).long(), uniforms_R)
    return tokens_R, logps_RV.gather(-1, tokens_R[:, None]).squeeze(-1)


def _draw(weights_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    cumulative_RV = weights_RV.cumsum(dim=-1)
    threshold_R = (uniforms_R * cumulative_RV[:, -1]).long()  # below the total, since the uniform number is below 1
    drawn_R = torch.searchsorted(cumulative_RV, threshold_R[:, None], right=True).squeeze(-1)
    return drawn_R.clamp_(max=weights_RV.shape[-1] - 1)  # only logits that are not finite get there


def _draw_truncated(probabilities_RV: Tensor, uniforms_R: Tensor, sampling: SamplingConfig) -> Tensor:
    """Keep the k likeliest tokens, then of these the fewest whose mass reaches top_p of theirs (Holtzman et al.,
    arXiv:1904.09751), as transformers does. Ties go to the smaller id."""
    sorted_RV, ids_RV = probabilities_RV.sort(dim=-1, descending=True, stable=True)
    weights_RV = (sorted_RV * FIXED_POINT).long()
    if sampling.top_k > 0:
        weights_RV[:, sampling.top_k :] = 0
    if sampling.top_p < 1.0:
        before_RV = weights_RV.cumsum(dim=-1) - weights_RV
        limit_R = sampling.top_p * weights_RV.sum(dim=-1).double()
        weights_RV = weights_RV.masked_fill(before_RV >= limit_R[:, None], 0)
    return ids_RV.gather(-1, _draw(weights_RV, uniforms_R)[:, None]).squeeze(-1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
