"""What a response is rewarded for, as configuration. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.artifacts import Fault

RULE_PARTS = ("accuracy", "format", "language")  # what scores a problem that does not say so itself
LEARNED_PARTS = ("helpfulness", "harmlessness")  # of a reward model: on the answer alone, on the whole response


@dataclass
class RewardConfig:
    """A weighted sum of parts. A problem is scored by those that its row names; every part is logged on its own."""

    accuracy: float = 1.0  # weight: the problem's verifier accepts the answer
    format: float = 0.0  # weight: one closed think block, then an answer (R1: equal to accuracy)
    language: float = 0.0  # weight: share of the reasoning's words in the prompt's language (R1: 1)
    preference: float = 0.0  # weight: a reward model's verdict, of problems that name helpfulness or harmlessness
    require_box: bool = True  # an answer counts only in \boxed{}
    wrong: float = 0.0  # value of a wrong answer (DAPO: -1)
    shuffle: bool = False  # negative control: rewards are permuted over the responses of a step

    def weight(self, part: str) -> float:
        return self.preference if part in LEARNED_PARTS else float(getattr(self, part))

    def faults(self) -> list[Fault]:
        if self.preference < 0:
            return [Fault("preference", f"is {self.preference}", "write 0 (off) or a positive weight, 1.0")]
        if self.accuracy == 0 and self.format == 0 and self.language == 0 and self.preference == 0:
            return [Fault("accuracy", "every part of the reward has weight 0", "give one part a weight, accuracy=1")]
        return []
