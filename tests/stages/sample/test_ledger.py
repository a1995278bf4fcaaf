"""One response for every verdict, and the sum over a group."""

from __future__ import annotations

import pytest

from stages.parts.data.tokenizer import build_tokenizer
from stages.parts.rollouts.requests import attach_scores, make_requests
from stages.parts.rollouts.types import Rollout, RolloutGroup, Score
from stages.sample.config import SampleConfig, outline
from stages.sample.ledger import KEPT, REASONS, conversation, judge_group, ledger_metrics, ledger_row, reasons
from tests.stages.answering import make_problem

GOOD = "<think>1+2=3</think>\\boxed{3}"
TOKENIZER = build_tokenizer()
PROBLEM = make_problem(1, 2)


def rollout(text: str, index: int = 0, end: str | None = "<|end|>") -> Rollout:
    ids = TOKENIZER(text + (end or ""), add_special_tokens=False)["input_ids"]
    prompt = make_requests(TOKENIZER, [PROBLEM], 1)[0].prompt_ids
    return Rollout(PROBLEM.id, index, prompt, ids, [0.0] * len(ids), end is None, text)


def verdicts(rollouts: list[Rollout], **changes) -> list[str]:
    cfg = SampleConfig(seed=0, **{"min_language": 0.9, **changes})
    attach_scores([PROBLEM] * len(rollouts), rollouts, cfg.reward)
    return judge_group(RolloutGroup(PROBLEM, rollouts), cfg, TOKENIZER)


@pytest.mark.parametrize(
    ("text", "end", "expected"),
    [
        (GOOD, "<|end|>", KEPT),
        (GOOD, None, "truncated"),
        ("<think>1+2=4</think>\\boxed{4}", "<|end|>", "wrong"),
        ("1+2=3 \\boxed{3}", "<|end|>", "format"),
        ("<think>entonces la suma es tres</think>\\boxed{3}", "<|end|>", "language"),
        ("<think>" + "so it is three. " * 12 + "</think>\\boxed{3}", "<|end|>", "repetition"),
        (GOOD, "<|endoftext|>", "template_drift"),
    ],
)
def test_verdict(text, end, expected):
    assert verdicts([rollout(text, end=end)]) == [expected]


def test_what_a_budget_cut_short_is_not_kept_and_the_ledger_says_so():
    cut = rollout(GOOD)
    cut.forced = [4, 5]
    assert verdicts([cut, rollout(GOOD, 1)], thinking_budget=8) == ["forced", KEPT]
    told = reasons(SampleConfig(seed=0, thinking_budget=8))
    row = ledger_row(RolloutGroup(PROBLEM, [cut]), ["forced"], told)
    assert (row["forced"], ledger_metrics([row], told)["ledger/forced"]) == (1, 1.0)
    assert "forced" not in reasons(SampleConfig(seed=0)) == REASONS  # ledgers of before are as they were


def test_long_paragraph():
    assert verdicts([rollout(GOOD)], max_paragraph_characters=3) == ["long_paragraph"]


def test_form_counts_only_where_it_is_rewarded():
    from stages.parts.verifiers.config import RewardConfig

    assert verdicts([rollout("1+2=3 \\boxed{3}")], reward=RewardConfig(format=0.0)) == [KEPT]


def test_unjudged():
    one = rollout(GOOD)
    one.score = Score(None, {"format": 1.0, "language": 1.0}, "no gold")
    cfg = SampleConfig(seed=0)
    assert judge_group(RolloutGroup(PROBLEM, [one]), cfg, TOKENIZER) == ["unjudged"]


def test_group_adds_up():
    texts = [GOOD, GOOD + " ", GOOD, "<think>2+1=3</think>\\boxed{3}", "<think>it is 3</think>\\boxed{3}", "\\boxed{9}"]
    group = [rollout(text, index) for index, text in enumerate(texts)]
    found = verdicts(group, keep_per_problem=2)
    assert found == [KEPT, "duplicate", "duplicate", KEPT, "over_limit", "wrong"]
    row = ledger_row(RolloutGroup(PROBLEM, group), found)
    assert row["sampled"] == row[KEPT] + sum(row[reason] for reason in REASONS) == 6
    metrics = ledger_metrics([row, row])
    assert metrics["ledger/sampled"] == 12 and metrics["ledger/kept"] == 4 and metrics["ledger/duplicate"] == 4
    assert metrics["ledger/problems"] == 2 and metrics["ledger/kept_share"] == pytest.approx(1 / 3)


def test_conversation():
    row = conversation(RolloutGroup(PROBLEM, []), rollout(GOOD))
    assert row["messages"][-1] == {"role": "assistant", "content": GOOD}
    assert row["messages"][:-1] == PROBLEM.messages and row["problem_id"] == PROBLEM.id


def test_outline_and_faults():
    facts = {"policy": {"parameters": 5}, "problems": {"suites": {"reasoning": {"train": 10}}}}
    plan = outline(SampleConfig(seed=0, samples=4, keep_per_problem=2), facts)
    assert plan.outputs == {"kept": {"rows": 20}, "ledger": {"rows": 10}} and plan.tokens == 10 * 4 * 128
    assert outline(SampleConfig(seed=0, suites=["poetry"]), facts).faults[0].key == "suites"
    keys = [fault.key for fault in SampleConfig(seed=0, keep_per_problem=0, min_language=2.0, temperature=0.0).faults()]
    assert keys == ["keep_per_problem", "min_language", "temperature"]
