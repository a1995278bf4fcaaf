"""What stages with a model say at plan time about the size of their work. Importable without torch.

Numbers that other files of this folder and of rollouts/ go by are theirs: a plan and the code read the same constants.
Configurations that are going to be refused come here too: nothing raises, and what comes out for them is never read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Held, Work
from stages.parts.policy.config import LOGITS_AT_ONCE, TrainedStageConfig
from stages.parts.rollouts.config import MAX_ROWS, RESPONSES_PER_CALL

if TYPE_CHECKING:
    from stages.parts.experience.config import ExperienceConfig

# Tokens of a prompt, an assumption: the embedded questions are short, and have a token a byte (data/tokenizer.py).
EMBEDDED_PROMPT, OTHER_PROMPT = 32, 128
BYTES_A_TOKEN = 4  # of text on disk
TEACHER_BYTES = 44  # of a logit beside a teacher's: both distributions, their difference and its gradient


def policy_of(cfg: TrainedStageConfig, facts: dict[str, Any], samples: bool = False) -> Held:
    """The model that a stage trains and hands on."""
    adapters = cfg.lora.rank > 0
    return Held(
        "policy",
        facts,
        trained=True,
        samples=samples,
        saved="adapter" if adapters and not cfg.lora.merge else "model",
        adapter_rank=cfg.lora.rank,
        adapter_modules=tuple(cfg.lora.target_modules) if adapters else (),
    )


def learning(cfg: TrainedStageConfig, facts: dict[str, Any], sequences: int, length: int) -> Work:
    """Steps on `sequences` sequences of at most `length` tokens, all of which may be supervised."""
    return Work(
        held=(policy_of(cfg, facts),),
        dtype=cfg.dtype,
        steps=cfg.steps,
        sequences=sequences,
        length=length,
        scored=length,
        tokens_per_microbatch=cfg.tokens_per_microbatch,
        logits_at_once=LOGITS_AT_ONCE,
        trained_tokens=cfg.steps * sequences * length,
    )


def with_teacher(work: Work, *teacher: dict[str, Any]) -> Work:
    """A teacher's distributions beside the student's; its facts, where it reads along itself."""
    held = (*work.held, *(Held("teacher", facts) for facts in teacher))
    return replace(work, held=held, logit_bytes=TEACHER_BYTES, read_tokens=work.trained_tokens)


def practising(cfg: ExperienceConfig, facts: dict[str, Any], problems: dict[str, Any], *others: Held) -> Work:
    """Rounds of sampling and updating; `others`: what is held beside the policy."""
    prompt, response = prompt_tokens(facts), cfg.max_response_tokens
    rollout = cfg.prompts_per_step * cfg.updates_per_rollout * cfg.G
    rollouts = cfg.steps / max(1, cfg.updates_per_rollout * cfg.epochs_per_rollout)
    # Held-out problems: before the first rollout, at each interval, and at the end.
    asked = cfg.monitor_problems * len(problems.get("suites") or cfg.suites)
    looks = 2 + cfg.steps // max(1, cfg.monitor_every_steps)
    sampled = round(rollouts * rollout) + looks * asked * cfg.monitor_samples
    return replace(
        learning(cfg, facts, cfg.prompts_per_step * cfg.G, prompt + response),
        held=(policy_of(cfg, facts, samples=True), *others),
        read_at_once=rollout,
        scored=response,
        logit_bytes=16 + (0 if cfg.temperature == 1.0 else 4),  # the entropy's share stays until the update is done
        writes_checkpoints=cfg.save_every_steps < cfg.steps,
        responses=max(rollout, responses_at_once(asked, cfg.monitor_samples)),
        prompt=prompt,
        response=response,
        rows_at_once=MAX_ROWS,
        drawing_bytes=drawing_bytes(cfg.temperature, cfg.top_p < 1.0 or cfg.top_k > 0),
        read_tokens=round(rollouts * rollout) * (prompt + response),
        sampled_tokens=sampled * (prompt + response),
    )


def scorers(beta: float, inputs: dict[str, dict[str, Any]]) -> list[Held]:
    """What an RL stage holds beside its policy: the reference of a KL, a reward model."""
    reference = [Held("reference", inputs["policy"])] if beta > 0 else []
    judges = [inputs["reward_model"]] if "reward_model" in inputs else []
    return reference + [Held("reward model", facts, is_body=True) for facts in judges]


def answering(cfg: Any, facts: dict[str, Any], problems: int, samples: int, more: int = 0, dtype: str = "auto") -> Work:
    """`samples` responses to each of `problems` problems, by stages that train nothing; `more`: other responses."""
    prompt = prompt_tokens(facts)
    truncated = getattr(cfg, "top_p", 1.0) < 1.0 or getattr(cfg, "top_k", 0) > 0
    return Work(
        held=(Held("policy", facts, samples=True),),
        dtype=dtype,
        length=prompt + cfg.max_response_tokens,
        responses=responses_at_once(problems, samples),
        prompt=prompt,
        response=cfg.max_response_tokens,
        rows_at_once=MAX_ROWS,
        drawing_bytes=drawing_bytes(cfg.temperature, truncated),
        sampled_tokens=(problems * samples + more) * (prompt + cfg.max_response_tokens),
        output_bytes=BYTES_A_TOKEN * problems * samples * cfg.max_response_tokens,
    )


def reading(cfg: Any, facts: dict[str, Any], sequences: int, length: int, output_bytes: int = 0) -> Work:
    """Sequences that a model reads once, by stages that train nothing."""
    return Work(
        held=(Held("policy", facts),),
        dtype=cfg.dtype,
        read_at_once=sequences,
        length=length,
        scored=length,
        tokens_per_microbatch=cfg.tokens_per_microbatch,
        logits_at_once=LOGITS_AT_ONCE,
        reading_bytes=16,
        read_tokens=sequences * length,
        output_bytes=output_bytes,
    )


def comparing(cfg: Any, student: dict[str, Any], teacher: dict[str, Any], problems: int) -> Work:
    """Both answer the problems, and read both answers."""
    sampled = answering(cfg, student, problems, cfg.samples, dtype=cfg.dtype)
    work = reading(cfg, student, problems * cfg.samples, sampled.length)
    return replace(
        sampled,
        held=(*sampled.held, Held("teacher", teacher, samples=True)),
        read_at_once=work.read_at_once,
        scored=cfg.max_response_tokens,
        tokens_per_microbatch=work.tokens_per_microbatch,
        logits_at_once=LOGITS_AT_ONCE,
        reading_bytes=TEACHER_BYTES,
        read_tokens=2 * work.read_tokens,
        output_bytes=0,
    )


def responses_at_once(problems: int, samples: int) -> int:
    """As `answer_problems` asks for them (stages/parts/rollouts/requests.py)."""
    return min(problems, max(1, RESPONSES_PER_CALL // max(1, samples))) * samples


def drawing_bytes(temperature: float, truncated: bool) -> int:
    """Of one logit where a token is drawn (stages/parts/rollouts/sampling.py): logits, log-probs, weights in fixed
    point and their sums; sorted with their places where the distribution is cut."""
    return (48 if truncated else 24) + (0 if temperature in (0.0, 1.0) else 4)


def prompt_tokens(facts: dict[str, Any]) -> int:
    return EMBEDDED_PROMPT if facts.get("vocab_size", OTHER_PROMPT**2) < 1024 else OTHER_PROMPT
