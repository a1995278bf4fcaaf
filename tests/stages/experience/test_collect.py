"""From problems to scored groups: dynamic sampling within its bound, length rules, and what cannot be judged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeline.tracking import Context
from stages.parts.data.problems import load_problems
from stages.parts.experience.collect import Experience, collect
from stages.parts.experience.monitors import rollout_metrics
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig
from stages.rl.config import RLConfig
from stages.rl.update import assign_advantages, update
from tests.stages.digits import digit_inputs, threes_or_hopeless

ALGORITHM = AlgorithmConfig(name="grpo", beta=0.0, epsilon=0.2)
CFG = RLConfig(
    seed=0, G=8, prompts_per_step=4, updates_per_rollout=2, max_response_tokens=6, algorithm=ALGORITHM,
    reward=RewardConfig(accuracy=1.0, require_box=False),
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collect")
    policy = load_policy(digit_inputs(folder)["policy"].path)
    threes_or_hopeless(folder / "half")
    return policy, load_problems(folder / "half", "train")


def rollout(world, tmp_path, cfg: RLConfig = CFG, problems: list[Problem] | None = None, rounds: int | None = None):
    policy, usual = world
    pools = {"reasoning": usual if problems is None else problems}
    context = Context("reasoning_rl", tmp_path, seed=0)
    return collect(transformers_engine(policy), policy, pools, {}, cfg, context, 0, rounds)


def groups(experience: Experience) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in experience.rows:
        found.setdefault(row.group, []).append(row.reward)
    return found


def test_a_rollout_is_whole_groups_in_minibatches(world, tmp_path):
    found = rollout(world, tmp_path)
    assert found.minibatches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {len(rewards) for rewards in groups(found).values()} == {8}
    assert found.resample_rounds == found.dropped_groups == 0


def test_dynamic_sampling_draws_again_in_the_place_of_constant_groups(world, tmp_path):
    """Half of the prompts can never be answered: their groups are constant, and others are drawn instead."""
    found = rollout(world, tmp_path, rounds=8)
    assert found.resample_rounds > 0 and found.dropped_groups > 0
    assert [len(batch) for batch in found.minibatches] == [4, 4]
    assert all(max(rewards) > min(rewards) for rewards in groups(found).values())
    assert len(found.sampled) == 8 * (8 + found.dropped_groups)  # what was turned away is still counted
    assert rollout_metrics(found)["groups/resample_rounds"] == found.resample_rounds


@pytest.mark.parametrize("rounds", [0, 2])
def test_dynamic_sampling_is_bounded_and_says_so(world, tmp_path, rounds):
    hopeless = [problem for problem in world[1] if problem.answer == "1000"]
    found = rollout(world, tmp_path, problems=hopeless, rounds=rounds)
    assert found.resample_rounds == rounds and found.rows == [] and found.minibatches == [[], []]
    assert len(found.sampled) == 8 * 8 * (1 + rounds)
    assert f"0 of 8 groups told right from wrong after {rounds} more rounds" in (tmp_path / "notes.jsonl").read_text()


def test_length_rules_reach_the_reward(world, tmp_path):
    """L_max 6, buffer 5: two tokens cost (6 - 5 - 2) / 5, six cost 1; a truncated response is worth what is said."""
    plain = rollout(world, tmp_path)
    soft = rollout(world, tmp_path, replace(CFG, algorithm=replace(ALGORITHM, overlong_buffer_tokens=5)))
    for before, after in zip(plain.rows, soft.rows, strict=True):
        penalty = max(-1.0, min(0.0, (1 - len(after.rollout.response_ids)) / 5))
        assert after.reward == pytest.approx(before.reward + penalty)
    assert [brief.score for brief in soft.briefs] == [brief.score for brief in plain.briefs]  # who is right stays
    short = replace(CFG, max_response_tokens=1, algorithm=replace(ALGORITHM, truncated_reward=-0.5))
    assert {row.reward for row in rollout(world, tmp_path, short).rows} == {-0.5}


def test_what_cannot_be_judged_is_counted_and_never_reaches_a_loss(world, tmp_path):
    """A whole group, a whole rollout, and groups of both kinds beside each other."""
    policy, problems = world
    broken = [replace(problem, answer="?? see the book") for problem in problems]
    mixed = rollout(world, tmp_path, problems=[*broken[:8], *problems[:24]])
    metrics = rollout_metrics(mixed)
    assert 0 < metrics["rollout/unjudged"] < len(mixed.rows) and math.isfinite(metrics["reward/mean"])
    assign_advantages(mixed, policy, CFG)
    assert all(row.trained == math.isfinite(row.reward) for row in mixed.rows)
    assert all(math.isfinite(value) for row in mixed.rows for value in row.advantages)
    hopeless = rollout(world, tmp_path, problems=broken)
    assert rollout_metrics(hopeless)["rollout/unjudged"] == len(hopeless.rows)
    assign_advantages(hopeless, policy, CFG)
    assert update(hopeless.rows, None, CFG, 1e-3) == {"train/empty_step": 1.0}  # no engine is asked for anything
