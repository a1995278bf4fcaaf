"""Patterns of flags: each asks for the mode it says, and none of the held-out ones is trained on."""

from __future__ import annotations

import pytest

from stages.parts.data.flags import HELD_OUT, PLAIN, PLAIN_LATER, SYSTEM, TRAINING, Flag, Pattern, flagged
from stages.parts.data.modes import is_flagged, wants_thinking


@pytest.mark.parametrize("pattern", [*TRAINING, *HELD_OUT], ids=lambda pattern: pattern.name)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_last_flag_is_that_of_the_mode(pattern, thinking):
    questions, answers = ["1+1?", "2+2?", "3+3?"][: pattern.turns], ["2", "4"][: pattern.turns - 1]
    messages = flagged(questions, answers, pattern, thinking)
    assert wants_thinking(messages) is thinking and is_flagged(messages)
    assert [turn["role"] for turn in messages if turn["role"] != "system"][-1] == "user"
    assert sum(turn["role"] == "user" for turn in messages) == pattern.turns


def test_plain_ones_think():
    assert wants_thinking(flagged(["a"], [], PLAIN, True)) and wants_thinking(
        flagged(["a", "b"], ["c"], PLAIN_LATER, True)
    )


def test_held_out_places_and_turns_are_not_trained_on():
    def places(patterns):
        return {(pattern.turns, tuple((flag.turn, flag.position) for flag in pattern.flags)) for pattern in patterns}

    assert not places(HELD_OUT) & places(TRAINING)
    assert {3} == {pattern.turns for pattern in HELD_OUT} - {pattern.turns for pattern in TRAINING}
    assert {"line", "text"} <= {flag.position for pattern in HELD_OUT for flag in pattern.flags}


def test_how_it_reads():
    changed = Pattern("changed", 2, (Flag(SYSTEM, "text", other=True), Flag(1, "line")))
    assert flagged(["1+1?", "2+2?"], ["\\boxed{2}"], changed, False) == [
        {"role": "system", "content": "be kind /think"},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "\\boxed{2}"},
        {"role": "user", "content": "2+2?\n/no_think"},
    ]
