"""What can be known about an algorithm before anything runs: faults, axes that do nothing, unusual values.

Importable without torch. `algorithm_faults` and `rl_faults` refuse; `inert` names knobs whose value cannot change the
result of this stage, so that a sweep over one is not mistaken for a finding; `unusual` compares with the papers.
"""

from __future__ import annotations

import difflib
import math

from pipeline.artifacts import Fault
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import CLIP_KNOBS, PAPERS

CHOICES = {
    "name": tuple(PAPERS),
    "reduction": ("sequence_mean", "token_mean", "constant_length", "sequence_sum_mean"),
    "std": ("population", "sample", "none"),
    "zero_variance": ("keep", "drop", "resample"),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_place": ("loss", "reward"),
}
# The one inert knob that still changes bits: its gradient is zero in expectation only.
NOISE_ALONE = "k1 in the loss has no expected gradient (write kl_estimator=k3, or kl_place=reward)"
# Inert too, but the same as leaving it out only here: its place in a fingerprint stays.
SAME_BOUND = "the upper bound is 1 + epsilon with it and without (write more than epsilon to make it act)"
NOT_NEGATIVE = (
    "beta",
    "epsilon",
    "epsilon_high",
    "std_epsilon",
    "max_resample_rounds",
    "overlong_buffer_tokens",
    "reference_reset_steps",
)


def algorithm_faults(cfg: AlgorithmConfig) -> list[Fault]:
    """What cannot be right whatever the stage; keys relative to the algorithm."""
    faults = [_unknown(key, getattr(cfg, key)) for key, known in CHOICES.items() if getattr(cfg, key) not in known]
    for key in NOT_NEGATIVE:
        value = getattr(cfg, key)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            faults.append(Fault(key, f"is {value}", "write 0 or more"))
    if cfg.epsilon_high is not None and cfg.epsilon_high < cfg.epsilon:
        faults.append(
            Fault(
                "epsilon_high",
                f"is {cfg.epsilon_high:g}, below epsilon={cfg.epsilon:g}: raising a token would be held tighter"
                " than lowering one",
                f"write at least {cfg.epsilon:g}, or leave it out",
            )
        )
    if cfg.dual_clip is not None and not cfg.dual_clip > 1:
        faults.append(Fault("dual_clip", f"is {cfg.dual_clip}, it bounds ratios above 1", "write 3.0, or leave it out"))
    if cfg.importance_cap is not None and not cfg.importance_cap > 0:
        faults.append(Fault("importance_cap", f"is {cfg.importance_cap}", "write 2.0, or leave it out"))
    if cfg.name == "cispo":
        faults += _ratio_max_faults(cfg.ratio_max)
    return faults


def _unknown(key: str, value: str) -> Fault:
    near = difflib.get_close_matches(str(value), CHOICES[key], n=2, cutoff=0.5)
    hint = f"write {' or '.join(near)}" if near else f"write one of {', '.join(CHOICES[key])}"
    return Fault(key, f"'{value}' is unknown", hint)


def _ratio_max_faults(ratio_max: float | None) -> list[Fault]:
    if ratio_max is None:
        return [Fault("ratio_max", "is missing, cispo bounds the ratio by it", "write an absolute bound, 5.0")]
    if not ratio_max >= 1:
        return [
            Fault(
                "ratio_max",
                f"is {ratio_max:g}: it is the absolute bound of the ratio, not an offset from 1",
                f"write {1 + max(ratio_max, 0):g}",
            )
        ]
    return []


def rl_faults(
    cfg: AlgorithmConfig,
    *,
    G: int,
    temperature: float,
    top_p: float,
    top_k: int,
    max_response_tokens: int,
) -> list[Fault]:
    """Impossible combinations of an algorithm with its stage; keys relative to the stage."""
    faults = []
    if G < 1:
        faults.append(Fault("G", f"is {G}", "write 2 or more responses a prompt"))
    elif G == 1 and cfg.name in PAPERS and PAPERS[cfg.name].group_baseline:
        faults.append(
            Fault(
                "G",
                f"is 1, but {cfg.name} compares a response with others to the same prompt: every advantage would be 0",
                "write 2 or more, or use an algorithm without a group baseline, algorithm=reinforce_pp",
            )
        )
    elif G == 1 and cfg.name == "reinforce_pp" and cfg.beta > 0 and cfg.kl_place == "loss":
        faults.append(
            Fault(
                "algorithm.kl_place",
                "is loss with G=1: REINFORCE++ with one response a prompt has its KL in the reward",
                "write algorithm.kl_place=reward algorithm.kl_estimator=k1, or G=2 or more",
            )
        )
    if temperature <= 0:
        faults.append(
            Fault(
                "temperature", f"is {temperature:g}: all responses to a prompt would be one and the same", "write 1.0"
            )
        )
    if cfg.importance_cap is not None and (top_p < 1 or top_k > 0):
        key, value = ("top_p", f"{top_p:g}") if top_p < 1 else ("top_k", str(top_k))
        faults.append(
            Fault(
                key,
                f"is {value} with algorithm.importance_cap: the sampler's distribution is cut, the trainer's is not,"
                " so the weights would be biased",
                "write top_p=1 top_k=0, or leave importance_cap out",
            )
        )
    if cfg.overlong_buffer_tokens > max_response_tokens:
        faults.append(
            Fault(
                "algorithm.overlong_buffer_tokens",
                f"is {cfg.overlong_buffer_tokens}, beyond max_response_tokens={max_response_tokens}: every response"
                " would be penalised",
                f"write less than {max_response_tokens} (DAPO: a fifth of the limit, {max_response_tokens // 5})",
            )
        )
    return faults


def inert(
    cfg: AlgorithmConfig, *, G: int, updates_per_rollout: int, epochs_per_rollout: int, steps: int
) -> dict[str, str]:
    """Stage key -> why its value changes nothing here. The plan names those that somebody set or sweeps."""
    paper = PAPERS[cfg.name]
    why = {knob: reason.format(row=cfg.name) for knob, reason in paper.unread.items()}
    if updates_per_rollout * epochs_per_rollout == 1:
        at_one = (
            "with one update a rollout the policy is the one that sampled, every ratio is 1 and no bound is reached"
            " (updates_per_rollout=2 makes it act)"
        )
        for knob in (*CLIP_KNOBS, "ratio_max"):
            why.setdefault(knob, at_one)
    if cfg.epsilon >= 1 and cfg.epsilon_high is not None:
        why.setdefault("epsilon", f"the lower bound 1 - {cfg.epsilon:g} is never reached and epsilon_high is set")
    if cfg.epsilon_high is None or cfg.epsilon_high == cfg.epsilon:
        why.setdefault("epsilon_high", SAME_BOUND)
    why |= {knob: reason for knob, reason in _inert_kl(cfg, steps).items() if knob not in why}
    if cfg.std == "none":
        why.setdefault("std_epsilon", "nothing is divided by with std=none")
    if cfg.zero_variance != "resample":
        why["max_resample_rounds"] = f"zero_variance={cfg.zero_variance} draws nothing again"
    if G == 1 and not paper.group_baseline:
        why["zero_variance"] = "with G=1 there are no groups"
    return {f"algorithm.{knob}": reason for knob, reason in why.items()}


def _inert_kl(cfg: AlgorithmConfig, steps: int) -> dict[str, str]:
    if cfg.beta == 0:
        return dict.fromkeys(
            ("kl_estimator", "kl_place", "reference_reset_steps"), "beta is 0, so no reference is loaded"
        )
    why = {}
    if cfg.kl_estimator == "k1" and cfg.kl_place == "loss":
        why["beta"] = NOISE_ALONE
    if cfg.reference_reset_steps >= steps:
        why["reference_reset_steps"] = f"the stage ends after {steps} steps, before the first reset"
    return why


def pinned(name: str) -> dict[str, str]:
    """Root knob -> why it does not reach this algorithm: its own YAML says what the paper says."""
    paper = PAPERS[name]
    values = {knob: f"{name} pins {knob} to {paper.knobs[knob]:g} (arXiv:{paper.arxiv})" for knob in paper.pins}
    return {knob: f"{text}; write stages.STAGE.algorithm.{knob}= to set it" for knob, text in values.items()}


def unusual(cfg: AlgorithmConfig, *, updates_per_rollout: int) -> list[str]:
    """Departures of a row from its own paper, one sentence each; the ranges of all papers are in published.py."""
    paper = PAPERS[cfg.name]
    found = []
    for knob, value in paper.knobs.items():
        ours = getattr(cfg, knob)
        if ours != value and knob not in paper.unread:
            found.append(f"algorithm.{knob}={ours}: {cfg.name} has {value} (arXiv:{paper.arxiv})")
    if not paper.has_ratio and updates_per_rollout > 1:
        found.append(
            f"{cfg.name} corrects for nothing that happened since the rollout: of updates_per_rollout="
            f"{updates_per_rollout} all but the first are off-policy"
        )
    return found
