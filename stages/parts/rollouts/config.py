"""How responses are sampled, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SamplingConfig:
    """Sampling distribution and limits of one generation call."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    max_response_tokens: int = 128
