"""What an engine wrote into a response is read and carries no loss: masks, denominators, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.parts.experience.collect import Row
from stages.parts.experience.first_step import audit_rows
from stages.parts.experience.rows import batch_of, count_rows, row_batches, score_rows
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.train_engine import build_engine
from stages.parts.rollouts.types import Problem, Rollout
from stages.rl.config import RLConfig
from stages.rl.update import update
from tests.stages.policy.tiny import context_in, tiny_policy

CONFIG = RLConfig(
    seed=0, G=2, max_response_tokens=8, learning_rate=1e-2,
    algorithm=AlgorithmConfig(beta=0.0, epsilon=0.2, reduction="token_mean"),
)  # fmt: skip
PROBLEM = Problem("p", "reasoning", "sums", [{"role": "user", "content": "1+1?"}], "2")


def rows(*forced: list[int], advantage: float = 1.0) -> list[Row]:
    """Two responses of five tokens to a prompt of three."""
    made = []
    for index, places in enumerate(forced):
        rollout = Rollout("p", index, [65, 66, 67], [68 + index, 69, 70, 71, 72], [-1.0] * 5, True, forced=places)
        made.append(Row(0, PROBLEM, rollout, advantages=[advantage if index == 0 else -advantage] * 5))
    return made


def test_forced_tokens_are_outside_mask_and_denominator():
    batch = batch_of(rows([1, 2], []), tiny_policy())
    assert batch.mask_BT.tolist() == [[0, 0, 0, 1, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]]
    assert count_rows(rows([1, 2], []), CONFIG).tokens == 8
    audited = audit_rows(rows([1, 2], []))
    assert audited[0].mask == [False] * 3 + [True, False, False, True, True]


def test_packed_rows_say_what_padded_ones_say(tmp_path):
    """Four ragged responses in fewer rows: the same log-probs, each at its own response."""
    made = []
    for index, size in enumerate((5, 2, 4, 1)):
        tokens = [70 + index + place for place in range(size)]
        rollout = Rollout("p", index, [65, 66, 67][: 1 + index % 3], tokens, [-1.0] * size, False)
        made.append(Row(0, PROBLEM, rollout))
    engine = build_engine(tiny_policy(), replace(CONFIG, dtype="float32"), context_in(tmp_path))
    [(chosen, batch)] = row_batches(made, engine.policy, replace(CONFIG, packing=True))
    assert batch.packed and len(batch.input_ids_BT) < 4 and len(chosen) == 4
    with torch.no_grad():
        padded, packed = (
            {row.rollout.sample_index: logps for row, logps in score_rows(made, engine.policy, score, cfg)}
            for cfg in (CONFIG, replace(CONFIG, packing=True))
            for score in [lambda batch: engine.logps(batch).logps_BT]
        )
    assert [len(padded[index]) for index in range(4)] == [5, 2, 4, 1]
    for index, logps in padded.items():
        assert packed[index] == pytest.approx(logps, abs=1e-5)


def test_their_advantage_changes_no_gradient(tmp_path):
    """Whatever advantage stands on a forced token, the update is the same; on a token of the policy it is not."""
    after = []
    for place, value in ((1, 0.0), (1, 50.0), (3, 50.0)):
        policy = tiny_policy()
        engine = build_engine(policy, replace(CONFIG, dtype="float32"), context_in(tmp_path / str(len(after))))
        made = rows([1, 2], [])
        made[0].advantages[place] = value
        update(made, engine, CONFIG, 1e-2)
        after.append(torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]))
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])
