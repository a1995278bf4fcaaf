"""The reward: a weighted sum whose arithmetic is in the comments; format, language, task and exact verifiers."""

from __future__ import annotations

import pytest

from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.language import detect_language, language_share
from stages.parts.verifiers.reward import format_part, judge, score_all, score_response

SUM = Problem("p", "reasoning", "chain_sum", [{"role": "user", "content": "Compute 3+4"}], "7")


def test_weights():
    cfg = RewardConfig(accuracy=1.0, format=0.5, language=0.25, wrong=-1.0)
    # right, formatted, 1 of 2 words in English: 1 + 0.5 + 0.25 * 0.5
    score = score_response(SUM, "<think>work cuenta 3+4=7</think>\\boxed{7}", False, cfg)
    assert score.parts == {"accuracy": 1.0, "format": 1.0, "language": 0.5}
    assert score.value == pytest.approx(1.625)
    # wrong: -1 + 0.5 + 0.25
    assert score_response(SUM, "<think>3+4=8</think>\\boxed{8}", False, cfg).value == pytest.approx(-0.25)
    # right but cut off before its end token: no format
    assert score_response(SUM, "<think>3+4=7</think>\\boxed{7}", True, cfg).value == pytest.approx(1.25)


def test_unjudgeable_gold_shifts_nothing():
    odd = Problem("q", "reasoning", "x", SUM.messages, "???")
    scores = score_all([SUM, odd, SUM], ["\\boxed{7}", "\\boxed{7}", "\\boxed{8}"], [False] * 3, RewardConfig())
    assert [score.value for score in scores] == [1.0, None, 0.0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>a</think>\\boxed{7}", 1.0),
        (" <think>a</think> so \\boxed{7}.", 1.0),
        ("a</think>\\boxed{7}", 1.0),  # the prompt opened the block
        ("<think></think>\\boxed{7}", 0.0),
        ("\\boxed{7}", 0.0),
        ("<think>a</think>7", 0.0),
        ("hm <think>a</think>\\boxed{7}", 0.0),
        ("<think>a</think><think>b</think>\\boxed{7}", 0.0),
        ("<think>a \\boxed{7}", 0.0),
    ],
)
def test_format(text, value):
    assert format_part(text, truncated=False) == value


def test_language():
    assert detect_language("Compute 3+4") == "en"
    assert detect_language("¿Cuanto es la suma de 3 y 4?") == "es"
    assert detect_language("三加四等于多少") == "zh"
    assert language_share("work: 3+4=7", "en") == 1.0
    assert language_share("cuenta: 3+4=7", "en") == 0.0
    assert language_share("3+4=7", "en") == 1.0
    assert language_share("so 三加四 is seven", "en") == pytest.approx(3 / 4)
    assert language_share("\\frac{1}{2}", "zh") == 1.0


def test_exact_and_task():
    words = Problem("p", "general", "number_sorting", SUM.messages, "2 9 13", "exact")
    assert judge(words, "\\boxed{2, 9, 13}").value == 1.0
    assert judge(words, "\\boxed{2 13 9}").value == 0.0
    entry = {"question": "", "answer": "tac", "metadata": {}}
    spell = Problem(
        "p", "general", "spell_backward", SUM.messages, "tac", "task", {"task": "spell_backward", "entry": entry}
    )
    assert judge(spell, "\\boxed{tac}").value == 1.0
    assert judge(spell, "\\boxed{tca}").value == 0.0  # a third of the letters in place is not right
    assert judge(spell, "tac").reason == "no box"
