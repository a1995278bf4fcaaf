"""The checks of what the loss sees: the real template passes, and every planted fault is named."""

from __future__ import annotations

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data.audit import Row, audit, check_first_step
from stages.parts.data.template import render_conversation
from stages.parts.data.tokenizer import END_IDS, build_tokenizer


@pytest.fixture
def tokenizer():
    return build_tokenizer()


@pytest.fixture
def rows(tokenizer):
    answers = ("<think>2+2 is 4</think>\\boxed{4}", "<think>wait, 5</think>\\boxed{5}")
    return [
        Row(*render_conversation(tokenizer, [{"role": "user", "content": "sum?"}, {"role": "assistant", "content": a}]))
        for a in answers
    ]


def faults(rows, tokenizer):
    return " ".join(audit(rows, tokenizer, END_IDS).faults)


def test_rows_of_the_template_are_right(rows, tokenizer):
    result = check_first_step(rows, tokenizer, END_IDS)
    assert (result.rows, result.ended, result.thinking, result.cut, result.broken_thinking) == (2, 2, 2, 0, 0)
    assert result.supervised == sum(sum(row.mask) for row in rows) < result.tokens
    assert result.notes == [] and result.metrics()["audit/ended_share"] == 1.0


def test_an_all_zero_mask(rows, tokenizer):
    for row in rows:
        row.mask = [False] * len(row.ids)
    assert "no token carries loss" in faults(rows, tokenizer)
    with pytest.raises(StageFailed, match="no token carries loss"):
        check_first_step(rows, tokenizer, END_IDS)


def test_prompts_in_the_loss(rows, tokenizer):
    for row in rows:
        row.mask = [True] * len(row.ids)
    assert "prompts too" in faults(rows, tokenizer)


def test_end_tokens_outside_the_loss(rows, tokenizer):
    for row in rows:
        row.mask[-1] = False
    assert "never learn to stop" in faults(rows, tokenizer)


def test_rows_cut_on_the_right(rows, tokenizer):
    rows[0].ids, rows[0].mask = rows[0].ids[:-3], rows[0].mask[:-3]
    assert audit(rows, tokenizer, END_IDS).notes == ["1 of 2 rows stop without an end token"]
    rows[1].ids, rows[1].mask = rows[1].ids[:-3], rows[1].mask[:-3]
    assert "never learn to stop" in faults(rows, tokenizer)
    assert audit(rows, tokenizer, END_IDS, pieces=True).faults == []  # parts of longer conversations need not end


def test_a_think_tag_outside_the_loss(rows, tokenizer):
    opening = tokenizer.convert_tokens_to_ids("<think>")
    for row in rows:
        row.mask[row.ids.index(opening)] = False
    assert "<think> is outside the loss" in faults(rows, tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "'<|assistant|>' -}}{%- endif", "'<|assistant|><think>' -}}{%- endif"
    )
    assert faults(rows, tokenizer) == ""  # the prompt opens the block, so the model need not


def test_a_think_block_that_never_closes(rows, tokenizer):
    closing = tokenizer.convert_tokens_to_ids("</think>")
    for row in rows[:1]:
        row.ids[row.ids.index(closing)] = ord(".")
    assert "1 of 2 rows end with a think block" in " ".join(audit(rows, tokenizer, END_IDS).notes)
    assert "1 of 1 rows end with a think block" in faults(rows[:1], tokenizer)


def test_two_bos_tokens(rows, tokenizer):
    tokenizer.bos_token = "<|system|>"
    try:
        assert faults(rows, tokenizer) == ""
        for row in rows:
            row.ids, row.mask = [tokenizer.bos_token_id] * 2 + row.ids, [False] * 2 + row.mask
        assert "two BOS" in faults(rows, tokenizer)
    finally:
        tokenizer.bos_token = None


def test_a_response_that_ended_but_counts_as_truncated(rows, tokenizer):
    rows[0].truncated = True
    assert "set of end tokens" in faults(rows, tokenizer)


def test_responses_that_are_all_truncated(rows, tokenizer):
    for row in rows:
        row.ids, row.mask, row.truncated = row.ids[:-1], row.mask[:-1], True
    result = audit(rows, tokenizer, END_IDS)
    assert result.faults == [] and "every response is truncated" in " ".join(result.notes)


def test_advantages(rows, tokenizer):
    for row in rows:
        row.advantages = [0.0] * len(row.ids)
    assert "every advantage is 0" in " ".join(audit(rows, tokenizer, END_IDS).notes)
    rows[0].advantages[-1] = float("nan")
    assert "not a number" in faults(rows, tokenizer)
