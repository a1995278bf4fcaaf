"""What counts as reasoning, looking back, repeating."""

from __future__ import annotations

import pytest

from stages.parts.evaluation.behaviour import is_reasoned, is_reflecting, longest_paragraph, repetition


@pytest.mark.parametrize(
    ("text", "reasoned", "reflecting"),
    [
        ("\\boxed{7}", False, False),
        ("The answer is \\boxed{7}", False, False),
        ("<think></think>\\boxed{7}", False, False),
        ("<think>3+4=7</think>\\boxed{7}", True, False),
        ("<think>3+4=8, wait, 3+4=7</think>\\boxed{7}", True, True),
        ("<think>3+4=7. check: 3+4=7</think>\\boxed{7}", True, True),
        ("<think>3+4=7, and it goes on", True, False),
        ("work: 3+4=7. \\boxed{7}", True, False),
        ("3 + 4 = 7, 7 + 1 = 8. \\boxed{8}", True, False),
        ("Let me check this again. \\boxed{8}", False, True),
        ("<think>spell waiter</think>wait \\boxed{retiaw}", True, False),
    ],
)
def test_reasoned_and_reflecting(text, reasoned, reflecting):
    assert (is_reasoned(text), is_reflecting(text)) == (reasoned, reflecting)


def test_repetition():
    assert repetition("a b c d") == 0.0
    assert repetition("a b c d e f") == 0.0
    # six words "a": three 4-grams, all the same: two of three are repeats
    assert repetition("a a a a a a") == pytest.approx(2 / 3)


def test_longest_paragraph():
    assert longest_paragraph("ab\ncd\n\nefg") == 5
    assert longest_paragraph("") == 0
