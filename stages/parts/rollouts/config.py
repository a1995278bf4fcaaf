"""How responses are sampled, as configuration. Importable without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.artifacts import Fault


@dataclass
class SamplingConfig:
    """Sampling distribution and limits of one generation call."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_response_tokens: int = 128

    def faults(self) -> list[Fault]:
        return sampling_faults(self)


def sampling_faults(cfg: Any) -> list[Fault]:
    """Range checks of whatever config has these fields (and `samples`, `top_k` where it has them)."""
    faults = []
    if not (cfg.temperature >= 0 and math.isfinite(cfg.temperature)):
        faults.append(Fault("temperature", f"is {cfg.temperature}", "write 0 (greedy) or more, 1.0"))
    if not 0 < cfg.top_p <= 1:
        faults.append(Fault("top_p", f"is {cfg.top_p}", "write a share in (0, 1]; 1 keeps every token"))
    for name, least in (("max_response_tokens", 1), ("samples", 1), ("max_problems", 1), ("top_k", 0)):
        if getattr(cfg, name, least) < least:
            faults.append(Fault(name, f"is {getattr(cfg, name)}", f"write at least {least}"))
    return faults
