"""What published recipes set, stage kind by stage kind: the plan says where a configuration is outside, and runs it.

One table. A range goes from the smallest to the largest value in use with some room; `also` are values outside it that
a paper does have, which no warning may call unusual. Learning rates are compared for models of the published sizes
alone: models far below have rates that are larger by orders. Importable without torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

from stages.parts.losses.papers import PAPERS

SMALLEST = 3 * 10**8  # parameters from which rates are compared; the smallest published RL is of 0.5B (2503.24290)


@dataclass(frozen=True)
class Range:
    kinds: tuple[str, ...]
    key: str  # a field of the stage, "algorithm.beta"
    low: float
    high: float
    source: str
    also: dict[float, str] = field(default_factory=dict)


PRACTISING = ("rl", "ppo")
ORZ = "Open-Reasoner-Zero (2503.24290)"
R1, R1_FIRST = "DeepSeek-R1 (2501.12948)", "DeepSeek-R1's first RL stage (2501.12948)"
RANGES = (
    Range(("rl",), "G", 4, 32, f"8 in Dr. GRPO (2503.20783), 16 in {R1}", {64: "DeepSeekMath (2402.03300)"}),
    Range(("ppo",), "G", 1, 64, f"1 in Tulu 3 (2411.15124), 64 in {ORZ}"),
    Range(PRACTISING, "algorithm.beta", 0.0, 0.01, f"0 in DAPO (2503.14476), 0.001 in {R1}",
          {0.04: "DeepSeekMath (2402.03300)", 0.05: "Tulu 3 (2411.15124)"}),
    Range(PRACTISING, "algorithm.epsilon", 0.1, 0.3, "0.2 in PPO (1707.06347)", {10.0: R1_FIRST}),
    Range(PRACTISING, "algorithm.epsilon_high", 0.1, 0.4, "0.28 in DAPO (2503.14476)", {10.0: R1_FIRST}),
    Range((*PRACTISING, "sample"), "temperature", 0.6, 1.0, f"0.7 in the last RL stage of {R1}, 1 before it"),
    Range(("rl",), "learning_rate", 5e-7, 5e-6, f"1e-6 in DeepSeekMath (2402.03300), 3e-6 in {R1}",
          {3e-7: "Tulu 3 (2411.15124)"}),
    Range(("ppo",), "learning_rate", 3e-7, 5e-6, f"3e-7 in Tulu 3 (2411.15124), 1e-6 in {ORZ}"),
    Range(("ppo",), "critic_learning_rate", 1e-6, 1e-5, f"5e-6 in {ORZ}"),
    Range(("ppo",), "algorithm.gae_lambda", 0.95, 1.0, f"1 in {ORZ}, 0.95 in PPO (1707.06347)"),
    Range(("sft",), "learning_rate", 2e-6, 1e-4, f"5e-6 in Tulu 3 (2411.15124), 5e-5 in {R1}"),
    Range(("distill",), "learning_rate", 2e-5, 1e-4, f"2e-5 for 70B to 1e-4 for 1.5B in {R1}"),
    Range(("reward_model",), "learning_rate", 5e-6, 2e-5, f"6e-6 in {R1}, 2e-5 in DeepSeekMath (2402.03300)"),
)  # fmt: skip
SEQUENCE_CLIP = Range(("rl",), "", 1e-5, 1e-2, "3e-4 and 4e-4 in GSPO (2507.18071)")  # of a ratio a response


def unusual_settings(cfg: Any, parameters: int | None) -> list[str]:
    """One sentence for each value of a stage's config that no published recipe has."""
    found = []
    for row in RANGES:
        if cfg.kind not in row.kinds or (row.key.endswith("learning_rate") and (parameters or 0) < SMALLEST):
            continue
        algorithm = getattr(getattr(cfg, "algorithm", None), "name", "")
        knob = row.key.removeprefix("algorithm.")
        paper = PAPERS.get(algorithm)
        value = functools.reduce(getattr, row.key.split("."), cfg)
        if value is None or (paper is not None and (knob in paper.unread or value == paper.knobs.get(knob))):
            continue
        if algorithm == "gspo" and knob.startswith("epsilon"):
            row = replace(SEQUENCE_CLIP, key=row.key)
        if not row.low <= value <= row.high and value not in row.also:
            also = "".join(f", and {known:g} in {where}" for known, where in row.also.items())
            told = f"published recipes have {row.low:g} to {row.high:g} ({row.source}{also})"
            found.append(f"{row.key}={value:g} is unusual: {told}")
    return found
