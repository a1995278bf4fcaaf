"""What a response is rewarded for, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.artifacts import Fault


@dataclass
class RewardConfig:
    """A weighted sum of rule-based parts. Every part is logged on its own."""

    accuracy: float = 1.0  # weight: the problem's verifier accepts the answer
    format: float = 0.0  # weight: one closed think block, then an answer (R1: equal to accuracy)
    language: float = 0.0  # weight: share of the reasoning's words in the prompt's language (R1: 1)
    require_box: bool = True  # an answer counts only in \boxed{}
    wrong: float = 0.0  # value of a wrong answer (DAPO: -1)
    shuffle: bool = False  # negative control: rewards are permuted over the responses of a step

    def faults(self) -> list[Fault]:
        if self.accuracy == 0 and self.format == 0 and self.language == 0:
            return [Fault("accuracy", "every part of the reward has weight 0", "give one part a weight, accuracy=1")]
        return []
