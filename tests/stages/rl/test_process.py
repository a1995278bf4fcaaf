"""Process supervision: which tokens a step's reward reaches, and the stage that is trained on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stages.parts.data.tokenizer import build_tokenizer
from stages.parts.experience.collect import Brief, Experience, Row
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.rollouts.types import Problem, Rollout, Score
from stages.parts.verifiers.config import RewardConfig
from stages.rl.config import RLConfig
from stages.rl.process import step_rewards, token_ends
from stages.rl.update import assign_advantages
from tests.stages.policy.tiny import tiny_policy

CFG = RLConfig(
    seed=0,
    G=2,
    supervision="process",
    algorithm=AlgorithmConfig(beta=0.0, epsilon=0.2),
    reward=RewardConfig(accuracy=1.0, format=1.0),
)
QUESTION = "5+3-2=?"


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def row(tokenizer, index: int, text: str, reward: float) -> Row:
    ids = tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id]
    problem = Problem("p", "reasoning", "chain_sum", [{"role": "user", "content": QUESTION}], "6")
    rollout = Rollout("p", index, [1, 2], ids, [0.0] * len(ids), False, text, Score(reward))
    return Row(0, problem, rollout, reward)


def experience(rows: list[Row]) -> Experience:
    briefs = [
        Brief(0, r.rollout.sample_index, r.reward, r.reward, len(r.rollout.response_ids), False, {}) for r in rows
    ]
    return Experience(rows, briefs, briefs, [[0]])


def test_steps_end_at_their_last_tokens_and_the_answer_at_the_last(tokenizer) -> None:
    text = "<think>so 5+3=8, 8-2=7</think>\\boxed{7}"
    found = step_rewards(row(tokenizer, 0, text, 1.0), tokenizer, CFG)
    assert found.rewards == [1.0, 0.0, 0.5]  # a response can earn 2
    pieces = [tokenizer.decode([token]) for token in row(tokenizer, 0, text, 1.0).rollout.response_ids]
    assert ["".join(pieces[: end + 1])[-4:] for end in found.ends[:2]] == ["+3=8", "-2=7"]
    assert found.ends[-1] == len(pieces) - 1


def test_tokens_that_are_bytes_of_a_character_are_counted_by_prefix(tokenizer) -> None:
    text = "é 1+1=2"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text)
    ends = token_ends(ids, text, tokenizer)
    assert ends[-1] == len(text) and ends == sorted(ends)


def test_a_token_learns_from_the_steps_that_end_at_or_after_it(tokenizer) -> None:
    right, wrong = "so 5+3=8, 8-2=6 \\boxed{6}", "so 5+3=8, 8-2=7 \\boxed{7}"
    rows = [row(tokenizer, 0, right, 2.0), row(tokenizer, 1, wrong, 0.0)]
    policy = tiny_policy()
    policy.tokenizer = tokenizer
    metrics = assign_advantages(experience(rows), policy, CFG)
    assert metrics["steps/mean"] == 2.0 and metrics["steps/right"] == 0.75
    # rewards 1 1 1 | 1 0 0: mean 2/3, std sqrt(2)/3, so a right step is worth 0.7071 and a wrong one -1.4142
    good, bad = rows[0].advantages, rows[1].advantages
    second = right.index("8-2=6") + len("8-2=6")
    assert good[0] == pytest.approx(3 * 0.70710678, abs=1e-5) and good[-1] == pytest.approx(0.70710678, abs=1e-5)
    assert bad[0] == pytest.approx(0.70710678 - 2 * 1.41421356, abs=1e-5)
    assert bad[second - 1] == pytest.approx(2 * -1.41421356, abs=1e-5)  # the wrong step's own last token
    assert bad[second] == pytest.approx(-1.41421356, abs=1e-5)  # the answer alone comes after it
    assert bad[0] > bad[second - 1]  # the right first step is blamed less than the slip


def test_a_response_that_cannot_be_judged_leaves_the_group(tokenizer) -> None:
    rows = [row(tokenizer, i, "5+3=8 \\boxed{6}", reward) for i, reward in enumerate((2.0, 0.0, float("nan")))]
    policy = tiny_policy()
    policy.tokenizer = tokenizer
    assign_advantages(experience(rows), policy, CFG)
    assert [r.trained for r in rows] == [True, True, False]
    assert set(rows[2].advantages) == {0.0} and rows[0].advantages[0] > rows[1].advantages[0]


def test_what_process_supervision_cannot_go_with() -> None:
    keys = lambda cfg: [fault.key for fault in cfg.faults()]  # noqa: E731
    assert keys(CFG) == []
    assert keys(replace(CFG, supervision="proces")) == ["supervision"]
    assert keys(replace(CFG, reward=RewardConfig(shuffle=True))) == ["reward.shuffle"]
    paid = AlgorithmConfig(name="rloo", beta=0.1, epsilon=0.2, kl_place="reward", kl_estimator="k1")
    assert keys(replace(CFG, algorithm=paid)) == ["algorithm.kl_place"]
