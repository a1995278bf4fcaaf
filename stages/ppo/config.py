"""`ppo`: proximal policy optimisation with a critic and GAE (arXiv:1707.06347, 1506.02438), on verifiable rewards.

What differs from `rl`: advantages come from a value model instead of a group, so one response a prompt is enough; the
price is a second model to hold and to train. A response that is cut off at its limit ends there like any other: nothing
is bootstrapped from the critic, because the limit is part of the task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault, Held, Outline, Port
from stages.parts.experience.config import ExperienceConfig, input_faults, redundant_weights, sampled_tokens
from stages.parts.losses.checks import algorithm_faults, rl_faults
from stages.parts.losses.config import AlgorithmConfig, LengthRules
from stages.parts.losses.published import unusual_settings
from stages.parts.policy.outline import adapter_faults, trained_facts
from stages.parts.policy.work import practising, scorers
from stages.parts.rollouts.config import budget_fields

RECIPE_VERSION = 1
INPUTS = {
    "policy": Port("model", "the model to train; also the body of the critic, and the reference of the KL"),
    "problems": Port("dataset:problems", "training problems and held-out ones for the monitors"),
    "reward_model": Port("reward_model", "scores problems that name helpfulness or harmlessness", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained policy, without its critic")}
CRITICS = ("separate", "head")


@dataclass
class PPOAlgorithmConfig(LengthRules):
    """The knobs of PPO. The KL to the reference (k1) is part of the reward, token by token."""

    beta: float = II("beta")  # weight of that KL; 0 loads no reference
    epsilon: float = II("epsilon")  # lower clip bound: ratios below 1 - epsilon
    epsilon_high: float | None = None  # upper clip bound: ratios above 1 + epsilon_high; None: epsilon
    reduction: str = "token_mean"  # of the policy's and of the value loss; see AlgorithmConfig
    gamma: float = 1.0  # discount a token
    gae_lambda: float = 1.0  # 1: unbiased returns, as Open-Reasoner-Zero (2503.24290); 0.95: InstructGPT and most code
    value_clip: float | None = 0.2  # values move at most this far from those at rollout time; None: not clipped
    whiten_advantages: bool = True  # mean 0, std 1 over the tokens of a rollout
    whiten_rewards: bool = False  # token rewards over their std, before GAE
    dual_clip: float | None = None  # see AlgorithmConfig, also for the two below
    importance_cap: float | None = None
    entropy_bonus: float = 0.0

    def actor(self) -> AlgorithmConfig:
        """The policy's side: clipped token ratios with advantages from elsewhere, which is REINFORCE++'s row."""
        return AlgorithmConfig(
            name="reinforce_pp",
            beta=self.beta,
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
            reduction=self.reduction,
            kl_estimator="k1",
            kl_place="reward",
            dual_clip=self.dual_clip,
            mask_truncated=self.mask_truncated,
            truncated_reward=self.truncated_reward,
            overlong_buffer_tokens=self.overlong_buffer_tokens,
            importance_cap=self.importance_cap,
            entropy_bonus=self.entropy_bonus,
        )

    def faults(self) -> list[Fault]:
        faults = algorithm_faults(self.actor())
        for key in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write a number from 0 to 1"))
        if self.value_clip is not None and not self.value_clip > 0:
            faults.append(Fault("value_clip", f"is {self.value_clip}", "write 0.2, or null for no clipping"))
        return faults


@dataclass
class PPOConfig(ExperienceConfig):
    kind: str = "ppo"
    algorithm: PPOAlgorithmConfig = field(default_factory=PPOAlgorithmConfig)
    critic: str = "separate"  # separate: a copy of the input's body with its own optimizer | head: on the policy
    critic_learning_rate: float = 1e-5  # separate: peak of the critic's schedule, which is otherwise the policy's
    value_weight: float = 0.1  # head: weight of the value loss beside the policy's

    def faults(self) -> list[Fault]:
        faults = super().faults() + rl_faults(
            self.algorithm.actor(),
            G=self.G,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_response_tokens=self.max_response_tokens,
        )
        if self.critic not in CRITICS:
            faults.append(Fault("critic", f"'{self.critic}' is unknown", f"write {' or '.join(CRITICS)}"))
        if self.critic == "head" and self.lora.rank > 0:
            faults.append(Fault("critic", "is head, but adapters would leave it untrained", "write critic=separate"))
        for key in ("critic_learning_rate", "value_weight"):
            if not getattr(self, key) > 0:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write a positive number"))
        return faults


def outline(cfg: PPOConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    policy, idle = inputs["policy"], inert(cfg)
    return Outline(
        outputs={"model": trained_facts(cfg, policy)},
        faults=input_faults(cfg, inputs) + adapter_faults(cfg, policy),
        warnings=unusual_settings(cfg, policy.get("parameters")),
        parameters=policy.get("parameters"),
        steps=cfg.steps,
        tokens=sampled_tokens(cfg),
        work=practising(cfg, policy, inputs["problems"], *_critic(cfg, policy), *scorers(cfg.algorithm.beta, inputs)),
        inert=idle,
        # Ratios and values of one update a rollout are 1 and the old ones up to rounding, so their bounds stay in.
        redundant=budget_fields(cfg)
        + redundant_weights(cfg)
        + [key for key in idle if not key.startswith("algorithm.")],
    )


def _critic(cfg: PPOConfig, policy: dict[str, Any]) -> list[Held]:
    return [Held("critic", policy, trained=True, is_body=True)] if cfg.critic == "separate" else []


def inert(cfg: PPOConfig) -> dict[str, str]:
    """Stage key -> why its value changes nothing here."""
    why = {}
    if cfg.critic == "head":
        why["critic_learning_rate"] = "critic=head is trained by the policy's optimizer at its rate"
    else:
        why["value_weight"] = "critic=separate has a loss and an optimizer of its own"
    if cfg.updates_per_rollout * cfg.epochs_per_rollout == 1:
        once = "with one update a rollout policy and critic are those that sampled (updates_per_rollout=2 makes it act)"
        knobs = ("epsilon", "epsilon_high", "dual_clip", "value_clip")
        why |= {f"algorithm.{knob}": once for knob in knobs}
    return why
