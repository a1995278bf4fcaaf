"""Why a sampled response is kept or dropped: every response gets exactly one verdict.

The order matters and is the ledger's: a response that is both wrong and badly formed counts as wrong. DeepSeek-R1
(arXiv:2501.12948, section 2.3.3) keeps right answers and drops mixed languages, long paragraphs and code blocks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stages.parts.data.template import render_conversation, split_thinking
from stages.parts.evaluation.behaviour import longest_paragraph, repetition
from stages.parts.rollouts.types import Rollout, RolloutGroup
from stages.sample.config import SampleConfig

KEPT = "kept"
REASONS = (
    "unjudged",  # the gold answer or the verifier is at fault
    "truncated",
    "wrong",
    "format",
    "language",
    "repetition",
    "long_paragraph",
    "template_drift",  # as a conversation it would train other tokens than were sampled
    "duplicate",  # of a kept one of the same problem, spaces aside
    "over_limit",  # keep_per_problem are there already
)
FORCED = "forced"  # cut short by a thinking budget: the stop text is never trained on


def reasons(cfg: SampleConfig) -> tuple[str, ...]:
    """Those that this stage's ledger tells."""
    return REASONS if cfg.thinking_budget is None else (*REASONS, FORCED)


def judge_group(group: RolloutGroup, cfg: SampleConfig, tokenizer: Any) -> list[str]:
    """A verdict for each response, in order of sample_index: `kept` or one of REASONS."""
    verdicts: list[str] = []
    seen: set[str] = set()
    for rollout in group.rollouts:
        verdict = fault_of(rollout, cfg) or KEPT
        if verdict == KEPT and drifts(group, rollout, tokenizer):
            verdict = "template_drift"
        text = " ".join(rollout.text.split())
        if verdict == KEPT and text in seen:
            verdict = "duplicate"
        if verdict == KEPT and len(seen) == cfg.keep_per_problem:
            verdict = "over_limit"
        if verdict == KEPT:
            seen.add(text)
        verdicts.append(verdict)
    return verdicts


def fault_of(rollout: Rollout, cfg: SampleConfig) -> str | None:
    """What is wrong with a response taken by itself; None where nothing is."""
    score = rollout.score
    assert score is not None
    if score.value is None:
        return "unjudged"
    if rollout.truncated:
        return "truncated"
    if rollout.forced:
        return FORCED
    if score.parts["accuracy"] < 1.0:
        return "wrong"
    if cfg.reward.format > 0 and score.parts["format"] < 1.0:
        return "format"
    reasoning, _ = split_thinking(rollout.text)
    readable = rollout.text if reasoning is None else reasoning
    if score.parts["language"] < cfg.min_language:
        return "language"
    if repetition(readable) > cfg.max_repetition:
        return "repetition"
    if longest_paragraph(readable) > cfg.max_paragraph_characters:
        return "long_paragraph"
    return None


def drifts(group: RolloutGroup, rollout: Rollout, tokenizer: Any) -> bool:
    """Whether the conversation, rendered for training, is not token for token what was sampled."""
    ids, mask = render_conversation(tokenizer, conversation(group, rollout)["messages"], last_only=True)
    start = mask.index(True)
    learned = [token for token, flag in zip(ids, mask, strict=True) if flag]
    return ids[:start] != rollout.prompt_ids or learned != rollout.response_ids


def conversation(group: RolloutGroup, rollout: Rollout) -> dict[str, Any]:
    """A kept response as a row of `dataset:conversations`; what earlier turns of the prompt said is not learned."""
    messages = [*group.problem.messages, {"role": "assistant", "content": rollout.text}]
    row = {"messages": messages, "problem_id": group.problem.id, "suite": group.problem.suite}
    earlier = any(turn["role"] == "assistant" for turn in group.problem.messages)
    return row | {"loss": "last"} if earlier else row


def ledger_row(group: RolloutGroup, verdicts: list[str], names: tuple[str, ...] = REASONS) -> dict[str, Any]:
    """A problem's line: sampled = kept + the sum of the reasons `names`."""
    counts = Counter(verdicts)
    row = {"problem_id": group.problem.id, "suite": group.problem.suite, "family": group.problem.family}
    return row | {"sampled": len(verdicts), KEPT: counts[KEPT]} | {reason: counts[reason] for reason in names}


def ledger_metrics(rows: list[dict[str, Any]], names: tuple[str, ...] = REASONS) -> dict[str, float]:
    """Totals over problems: `ledger/sampled`, `ledger/kept`, `ledger/<reason>`, and shares."""
    totals = {name: sum(row[name] for row in rows) for name in ("sampled", KEPT, *names)}
    metrics = {f"ledger/{name}": float(total) for name, total in totals.items()}
    metrics["ledger/problems"] = float(len(rows))
    metrics["ledger/problems_kept"] = float(sum(row[KEPT] > 0 for row in rows))
    metrics["ledger/kept_share"] = totals[KEPT] / max(totals["sampled"], 1)
    return metrics
