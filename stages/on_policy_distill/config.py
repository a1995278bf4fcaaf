"""`on_policy_distill`: the student samples, a teacher gives its probabilities at every prefix that the student wrote
(GKD, arXiv:2306.13649). The teacher scores and never generates.

    loss = divergence(teacher, student)  [+ reward_weight * policy loss of a verifiable reward]

Where `distill` shows the student prefixes that it would never write, this one teaches it what to do after its own. What
differs from the paper: on_policy_fraction (its lambda) is the share of every step's sequences that the student samples,
not the chance that a whole step is sampled, so that no step differs in kind from the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from pipeline.artifacts import Fault, Outline, Port, Work
from stages.parts.experience.config import ExperienceConfig, input_faults, sampled_tokens
from stages.parts.losses.checks import CHOICES, algorithm_faults, inert, rl_faults
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import PAPERS
from stages.parts.policy.outline import adapter_faults, teacher_faults, template_warnings, trained_facts
from stages.parts.policy.work import practising, with_teacher
from stages.parts.rollouts.config import budget_fields
from stages.parts.verifiers.config import RewardConfig

RECIPE_VERSION = 2
INPUTS = {
    "student": Port("model", "the model to train; it samples"),
    "teacher": Port("model", "gives its probabilities at the student's prefixes"),
    "problems": Port("dataset:problems", "training problems and held-out ones for the monitors"),
    "data": Port("dataset:conversations", "the share that the student does not sample", optional=True),
}
OUTPUTS = {"model": Port("model", "the trained student")}


@dataclass
class OnPolicyDistillConfig(ExperienceConfig):
    kind: str = "on_policy_distill"
    G: int = 1  # responses a prompt: a teacher's word on every token needs no group to compare with
    updates_per_rollout: int = 1  # more: the later updates of a rollout see prefixes of a slightly older student
    on_policy_fraction: float = (
        1.0  # of a step's sequences; the student samples these, the rest is `data` (GKD: lambda)
    )
    jsd_weight: float = 0.5  # of the teacher in the mixture (GKD: beta); 0: forward KL, 1: reverse KL, their limits
    reduction: str = "token_mean"  # of the divergence over tokens; the paper's is sequence_mean
    reward_weight: float = 0.0  # of the policy loss beside the divergence; 0: rewards are only watched
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)  # of that loss
    max_tokens: int = 512  # of a conversation of `data`
    over_length: str = "drop"  # drop | split | error

    @property
    def sampled_prompts(self) -> int:
        """Of a step, over all ranks. A fraction that is none (nan) is refused, and until then counts as 1."""
        return round(self.prompts_per_step * (self.on_policy_fraction if 0 <= self.on_policy_fraction <= 1 else 1))

    @property
    def conversations(self) -> int:
        """Of a step, over all ranks: every prompt that is not sampled leaves the place of G sequences."""
        return (self.prompts_per_step - self.sampled_prompts) * self.G

    def faults(self) -> list[Fault]:
        faults = super().faults() + _share_faults(self)
        if not self.temperature > 0:
            faults.append(Fault("temperature", f"is {self.temperature}", "write a positive number, 1.0"))
        if not 0.0 <= self.jsd_weight <= 1.0:
            remedy = "write a share from 0 (forward KL) to 1 (reverse KL), 0.5"
            faults.append(Fault("jsd_weight", f"is {self.jsd_weight}", remedy))
        if self.reduction not in CHOICES["reduction"]:
            known = ", ".join(CHOICES["reduction"])
            faults.append(Fault("reduction", f"'{self.reduction}' is unknown", f"write one of {known}"))
        if self.G < 1:
            faults.append(Fault("G", f"is {self.G}", "write 1 or more responses a prompt"))
        if self.over_length not in ("drop", "split", "error"):
            faults.append(Fault("over_length", f"'{self.over_length}' is unknown", "write drop, split or error"))
        if not self.reward_weight >= 0:
            faults.append(Fault("reward_weight", f"is {self.reward_weight}", "write 0 (no reward) or more"))
        return list({fault.key: fault for fault in [*faults, *_reward_faults(self)]}.values())


def _share_faults(cfg: OnPolicyDistillConfig) -> list[Fault]:
    share, prompts = cfg.on_policy_fraction, cfg.prompts_per_step
    if not 0.0 <= share <= 1.0:
        return [Fault("on_policy_fraction", f"is {share}", "write a share from 0 (data alone) to 1 (samples alone)")]
    if 0.0 < share < 1.0 and cfg.sampled_prompts in (0, prompts):
        kind = "none" if cfg.sampled_prompts == 0 else "all of them"
        remedy = f"write a multiple of {1 / max(prompts, 1):.3g}, or more prompts_per_step"
        return [Fault("on_policy_fraction", f"is {share}: of {prompts} prompts a step it rounds to {kind}", remedy)]
    return []


def _reward_faults(cfg: OnPolicyDistillConfig) -> list[Fault]:
    """What cannot go with a reward beside the divergence."""
    if not cfg.reward_weight > 0:
        return []
    faults = rl_faults(
        cfg.algorithm,
        G=cfg.G,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        top_k=cfg.top_k,
        max_response_tokens=cfg.max_response_tokens,
    )
    if cfg.on_policy_fraction == 0:
        faults.append(Fault("reward_weight", "has no samples to reward", "write on_policy_fraction above 0"))
    if cfg.algorithm.beta > 0:
        problem = f"is {cfg.algorithm.beta}: the teacher stands in the place of the reference"
        faults.append(Fault("algorithm.beta", problem, "write 0"))
    if cfg.algorithm.zero_variance == "resample":
        problem = "is resample, but a group without a signal still learns from its teacher"
        faults.append(Fault("algorithm.zero_variance", problem, "write keep or drop"))
    return faults


def outline(cfg: OnPolicyDistillConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    student, teacher = inputs["student"], inputs["teacher"]
    idle = _inert(cfg)
    plan = Outline(
        outputs={"model": trained_facts(cfg, student)},
        faults=teacher_faults(student, teacher) + adapter_faults(cfg, student),
        warnings=template_warnings(student, teacher),
        parameters=student.get("parameters"),
        steps=cfg.steps,
        tokens=sampled_tokens(cfg) * cfg.sampled_prompts // max(1, cfg.prompts_per_step)
        + cfg.steps * cfg.conversations * cfg.max_tokens,
        work=_work(cfg, student, teacher, inputs["problems"]),
        inert=idle,
        redundant=[*idle, *budget_fields(cfg)],
    )
    plan.faults += input_faults(cfg, {"policy": student, "problems": inputs["problems"]})
    if cfg.conversations and "data" not in inputs:
        problem = f"is not wired, and on_policy_fraction={cfg.on_policy_fraction} leaves {cfg.conversations} sequences"
        plan.faults.append(Fault("inputs.data", f"{problem} a step to it", "wire it, or write on_policy_fraction=1"))
    if cfg.conversations and inputs.get("data", {}).get("rows") == 0:
        plan.faults.append(Fault("inputs.data", "holds no conversations", "wire a dataset with rows"))
    context = student.get("context_length")
    if cfg.conversations and context is not None and cfg.max_tokens > context:
        problem = f"is {cfg.max_tokens}, but the model reads {context} tokens"
        plan.faults.append(Fault("max_tokens", problem, f"write at most {context}"))
    return plan


def _work(
    cfg: OnPolicyDistillConfig, student: dict[str, Any], teacher: dict[str, Any], problems: dict[str, Any]
) -> Work:
    """As of RL, with a teacher in the place of the reference, whose distributions stand beside the student's."""
    work = practising(cfg, student, problems)
    longest = max(work.length, cfg.max_tokens if cfg.conversations else 0)
    return with_teacher(replace(work, length=longest), teacher)


def _inert(cfg: OnPolicyDistillConfig) -> dict[str, str]:
    """Stage key -> why its value changes nothing in the model that comes out."""
    why: dict[str, str] = {}
    if cfg.reward_weight == 0:
        unread = [f"reward.{item.name}" for item in fields(RewardConfig)]
        unread += [f"algorithm.{item.name}" for item in fields(AlgorithmConfig) if item.name != "mask_truncated"]
        why |= dict.fromkeys(unread, "reward_weight=0 learns from the teacher alone")
    elif cfg.algorithm.name in PAPERS and not algorithm_faults(cfg.algorithm):
        why |= inert(
            cfg.algorithm,
            G=cfg.G,
            updates_per_rollout=2,  # old log-probs come from a pass of their own, so that ratios are 1 up to rounding
            epochs_per_rollout=cfg.epochs_per_rollout,
            steps=cfg.steps,
        )
    if not cfg.conversations:
        why |= dict.fromkeys(("max_tokens", "over_length"), "on_policy_fraction=1 reads no conversations")
    return why
