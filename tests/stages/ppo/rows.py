"""Made-up responses with everything that an update compares with."""

from __future__ import annotations

import torch

from stages.parts.experience.collect import Brief, Experience, Row
from stages.parts.rollouts.types import Problem, Rollout, Score


def made_up_rows(seed: int, count: int = 13) -> list[Row]:
    """Ragged; ratios and values lie on both sides of the clip bounds, advantages have either sign."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(size: int, scale: float, about: float = 0.0) -> list[float]:
        return (about + scale * torch.randn(size, generator=generator)).tolist()

    rows = []
    for index in range(count):
        prompt, size = (int(torch.randint(2, 20, (1,), generator=generator)) for _ in range(2))
        ids = torch.randint(0, 250, (prompt + size,), generator=generator).tolist()
        rollout = Rollout(f"p{index}", 0, ids[:prompt], ids[prompt:], numbers(size, 0.3, -5.5), truncated=False)
        rows.append(
            Row(
                index,
                Problem(f"p{index}", "reasoning", "made_up", [], ""),
                rollout,
                reward=float(index % 2),
                advantages=numbers(size, 1.0),
                old_logps=numbers(size, 0.3, -5.5),
                reference_logps=numbers(size, 0.3, -5.5),
                old_values=numbers(size, 0.3),
                returns=numbers(size, 1.0),
            )
        )
    return rows


def one_response(values: list[float], reward: float, **changes: object) -> Row:
    """A response of as many tokens as there are values."""
    size = len(values)
    rollout = Rollout("p", 0, [1, 2], [3] * size, [-1.0] * size, truncated=False, score=Score(reward))
    row = Row(0, Problem("p", "reasoning", "made_up", [], ""), rollout, reward=reward, old_values=values)
    row.old_logps, row.reference_logps = [-1.0] * size, [-1.0] * size
    for name, value in changes.items():
        setattr(row, name, value)
    return row


def experience_of(*rows: Row) -> Experience:
    briefs: list[Brief] = []
    return Experience(list(rows), briefs, briefs, [[row.group for row in rows]])
