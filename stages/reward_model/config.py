"""`reward_model`: learns from pairs which of two responses people, or rules, prefer (Bradley-Terry).

DeepSeek-R1 (arXiv:2501.12948) trains two of them, one for helpfulness on answers and one for safety on whole responses,
each an epoch at a batch of 256. Here one model learns both axes: what it reads tells them apart. Trained longer on the
same pairs it is gamed sooner (their figure 6), so the number of epochs is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import not_in_fingerprint, shared_by_ranks
from stages.parts.losses.published import unusual_settings
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.outline import trained_facts
from stages.parts.policy.work import learning

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the language model whose body is trained; the chain's own"),
    "preferences": Port("dataset:preferences", "pairs to learn from, and held-out ones to measure it by"),
}
OUTPUTS = {
    "model": Port("reward_model", "sequence classification with one label: the reward of a conversation"),
    "results": Port("metrics", "both rewards of every held-out pair"),
}


@dataclass
class RewardModelConfig(TrainedStageConfig):
    kind: str = "reward_model"
    evaluate: bool = not_in_fingerprint(False)  # it generates nothing
    pairs_per_step: int = shared_by_ranks(64)  # pairs that one optimizer step sees
    max_tokens: int = 512  # of one conversation; a pair with a longer one is dropped, and counted
    centre_weight: float = 0.01  # pulls rewards towards 0 (arXiv:2312.09244); 0: pairs alone, the scale floats
    monitor_every_steps: int = not_in_fingerprint(20)  # accuracy on dev pairs
    monitor_pairs: int = not_in_fingerprint(256)  # of them, at most

    def faults(self) -> list[Fault]:
        faults = super().faults()
        for key in ("pairs_per_step", "monitor_every_steps", "monitor_pairs"):
            if getattr(self, key) < 1:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write 1 or more"))
        if self.max_tokens < 2:
            faults.append(Fault("max_tokens", f"is {self.max_tokens}", "write at least 2, 512"))
        if not self.centre_weight >= 0:
            faults.append(Fault("centre_weight", f"is {self.centre_weight}", "write 0 (off) or a small weight, 0.01"))
        if self.lora.rank > 0:
            faults.append(Fault("lora.rank", "adapters would leave the reward head untrained", "write lora.rank=0"))
        return faults


def outline(cfg: RewardModelConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Facts of the model that it is made from, less those that the head changes."""
    policy, preferences = inputs["policy"], inputs["preferences"]
    facts = {
        name: value
        for name, value in trained_facts(cfg, policy).items()
        if name not in ("parameters", "end_tokens", "adapter")
    }
    plan = Outline(
        outputs={"model": facts | {"axes": preferences.get("axes", [])}},
        parameters=policy.get("parameters"),
        steps=cfg.steps,
        tokens=cfg.steps * cfg.pairs_per_step * 2 * cfg.max_tokens,
        warnings=unusual_settings(cfg, policy.get("parameters")),
        work=learning(cfg, policy, 2 * cfg.pairs_per_step, cfg.max_tokens),
    )
    assert plan.work is not None
    plan.work = replace(plan.work, held=tuple(replace(one, is_body=True) for one in plan.work.held))
    context = policy.get("context_length")
    if context is not None and cfg.max_tokens > context:
        problem = f"is {cfg.max_tokens}, but the model reads {context} tokens"
        plan.faults.append(Fault("max_tokens", problem, f"write at most {context}"))
    pairs = preferences.get("pairs", {})
    if pairs.get("train") == 0:
        plan.faults.append(Fault("inputs.preferences", "holds no training pairs", "wire preferences with pairs"))
    return plan
