"""Which problems a rollout draws: shares, epochs, and that the cursor is the whole state."""

from __future__ import annotations

from collections import Counter

from stages.parts.experience.order import draw
from stages.parts.rollouts.types import Problem


def pool(suite: str, n: int) -> list[Problem]:
    return [Problem(f"{suite}-{i}", suite, "f", [{"role": "user", "content": str(i)}], str(i)) for i in range(n)]


POOLS = {"reasoning": pool("reasoning", 10), "general": pool("general", 7)}


def test_no_problem_comes_twice_before_all_have_come_once():
    cursor: dict[str, int] = {}
    drawn = [p.id for _ in range(5) for p in draw(POOLS, {"reasoning": 1.0}, 0, cursor, 4)]
    assert set(Counter(drawn[:10]).values()) == {1}
    assert set(Counter(drawn[10:]).values()) == {1}


def test_shares_hold_over_time_within_one_problem():
    cursor: dict[str, int] = {}
    for round_ in range(1, 30):
        draw(POOLS, {"reasoning": 0.7, "general": 0.3}, 0, cursor, 3)
        assert abs(cursor["reasoning"] - 0.7 * 3 * round_) <= 1
    assert cursor["reasoning"] + cursor["general"] == 29 * 3


def test_a_resumed_cursor_goes_on_with_what_would_have_come():
    shares = {"reasoning": 0.5, "general": 0.5}
    cursor: dict[str, int] = {}
    whole = [[p.id for p in draw(POOLS, shares, 3, cursor, 6)] for _ in range(6)]
    cursor = {}
    for _ in range(3):
        draw(POOLS, shares, 3, cursor, 6)
    resumed = dict(cursor)  # what a checkpoint holds
    assert [[p.id for p in draw(POOLS, shares, 3, resumed, 6)] for _ in range(3)] == whole[3:]


def test_suites_are_mixed_within_a_rollout():
    drawn = draw(POOLS, {"reasoning": 0.5, "general": 0.5}, 0, {}, 12)
    first_half = {p.suite for p in drawn[:6]}
    assert first_half == {"reasoning", "general"}


def test_seeds_draw_other_orders():
    orders = {tuple(p.id for p in draw(POOLS, {"reasoning": 1.0}, seed, {}, 10)) for seed in range(5)}
    assert len(orders) == 5
