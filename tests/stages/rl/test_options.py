"""Every option of an RL stage acts, and as its formula says: the stage's own step against naive loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.parts.experience.rows import batch_of, of_response
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.model import load_policy
from stages.parts.policy.train_engine import TorchEngine
from stages.parts.rollouts.types import Score
from stages.rl.config import RLConfig
from stages.rl.run import run
from stages.rl.update import assign_advantages, update
from tests.stages.digits import digit_inputs
from tests.stages.losses import naive
from tests.stages.policy.tiny import tiny_policy
from tests.stages.ppo.rows import made_up_rows
from tests.stages.rl.test_process import experience
from tests.stages.rl.test_run import CONFIG, context, records

LIMIT = 30
PLAIN = AlgorithmConfig(name="grpo", beta=0.0, epsilon=0.2)
CFG = RLConfig(
    seed=0, G=2, max_response_tokens=LIMIT, tokens_per_microbatch=150, algorithm=PLAIN,
    optimizer=OptimizerConfig(max_grad_norm=0.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return digit_inputs(tmp_path_factory.mktemp("options"))


def one_step(algorithm: AlgorithmConfig, **changes) -> tuple[dict[str, float], list, TorchEngine]:
    """Metrics of one optimizer step on made-up rows."""
    rows = made_up_rows(3)
    for row in rows:
        for name, value in changes.items():
            setattr(row, name, value(row))
    engine = TorchEngine(tiny_policy(), CFG)
    return update(rows, engine, replace(CFG, algorithm=algorithm), 1e-3), rows, engine


def as_responses(rows, temperature: float = 1.0) -> list[naive.Response]:
    """The rows with what the policy itself says of them before the step."""
    policy = tiny_policy()
    batch = batch_of(rows, policy)
    with torch.no_grad():
        stats = TorchEngine(policy, CFG).logps(batch, temperature, entropy=True)
    return [
        naive.Response(
            row.group, row.reward, of_response(stats.logps_BT, batch, place, row), row.old_logps,
            row.rollout.sampler_logps, row.reference_logps, of_response(stats.entropy_BT, batch, place, row),
        )
        for place, row in enumerate(rows)
    ]  # fmt: skip


OPTIONS = [
    {"epsilon": 0.1},
    {"epsilon_high": 0.28},
    {"dual_clip": 1.05},
    {"importance_cap": 1.1},
    {"entropy_bonus": 0.05},
    {"beta": 0.3, "kl_estimator": "k1"},
    {"beta": 0.3, "kl_estimator": "k2"},
    {"beta": 0.3, "kl_estimator": "k3"},
    {"reduction": "token_mean"},
    {"reduction": "constant_length"},
    {"reduction": "sequence_sum_mean"},
    {"name": "gspo", "epsilon": 0.02},
    {"name": "cispo", "ratio_max": 1.1},
    {"name": "rloo"},
]


@pytest.mark.parametrize("knobs", OPTIONS, ids=[" ".join(f"{k}={v}" for k, v in knobs.items()) for knobs in OPTIONS])
def test_an_option_changes_the_loss_as_its_formula_says(knobs):
    cfg = replace(PLAIN, **knobs)
    metrics, rows, _ = one_step(cfg)
    responses = as_responses(rows)
    expected, _ = naive.loss_of_advantages(
        cfg.name, cfg.reduction, responses, [row.advantages for row in rows], epsilon=cfg.epsilon,
        epsilon_high=cfg.epsilon if cfg.epsilon_high is None else cfg.epsilon_high, length_limit=LIMIT, beta=cfg.beta,
        estimator=cfg.kl_estimator, dual=cfg.dual_clip, ratio_max=cfg.ratio_max or 0.0, cap=cfg.importance_cap,
        entropy_bonus=cfg.entropy_bonus,
    )  # fmt: skip
    assert metrics["train/loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    without, _, _ = one_step(PLAIN)
    assert metrics["train/loss"] != pytest.approx(without["train/loss"], rel=1e-3)
    assert metrics["train/grad_norm"] != pytest.approx(without["train/grad_norm"], rel=1e-6)


def test_the_entropy_bonus_alone_raises_entropy():
    nothing = {"advantages": lambda row: [0.0] * len(row.advantages)}
    off, _, _ = one_step(PLAIN, **nothing)
    on, rows, engine = one_step(replace(PLAIN, entropy_bonus=1.0), **nothing)
    assert off["train/grad_norm"] == 0.0 and on["train/grad_norm"] > 0.0
    with torch.no_grad():
        stats = engine.logps(batch_of(rows, engine.policy), 1.0, entropy=True)
        mask_BT = batch_of(rows, engine.policy).mask_BT
    assert ((stats.entropy_BT * mask_BT).sum() / mask_BT.sum()).item() > on["train/entropy"]


@pytest.mark.parametrize(
    ("std", "first"),
    [("population", 3**0.5), ("sample", 1.5), ("none", 0.75)],  # of 1 0 0 0: (1 - 1/4) over sqrt(3)/4, 1/2, 1
)
def test_what_a_group_is_divided_by(std, first):
    rows = _group([1.0, 0.0, 0.0, 0.0])
    assign_advantages(experience(rows), tiny_policy(), replace(CFG, G=4, algorithm=replace(PLAIN, std=std)))
    assert rows[0].advantages[0] == pytest.approx(first, rel=1e-5)
    assert rows[1].advantages == pytest.approx([-first / 3] * len(rows[1].advantages), rel=1e-5)


@pytest.mark.parametrize(("choice", "kept"), [("keep", True), ("drop", False), ("resample", False)])
def test_constant_groups_stay_or_go(choice, kept):
    rows = _group([1.0, 1.0])
    assign_advantages(experience(rows), tiny_policy(), replace(CFG, algorithm=replace(PLAIN, zero_variance=choice)))
    assert [row.trained for row in rows] == [kept, kept]


def test_truncated_responses_leave_the_loss_and_its_denominators():
    rows = _group([1.0, 0.0, 0.5])
    rows[0].rollout.truncated = True
    cfg = replace(CFG, G=3, algorithm=replace(PLAIN, mask_truncated=True))
    assign_advantages(experience(rows), tiny_policy(), cfg)
    assert [row.trained for row in rows] == [False, True, True]
    assert rows[1].advantages[0] == pytest.approx(-1.2247, rel=1e-3)  # the group's mean and std keep its reward
    masked = update(rows, TorchEngine(tiny_policy(), CFG), cfg, 1e-3)
    alone = update(rows[1:], TorchEngine(tiny_policy(), CFG), cfg, 1e-3)
    assert masked["train/tokens"] == sum(len(row.rollout.response_ids) for row in rows[1:])
    assert masked["train/loss"] == alone["train/loss"]
    for row in rows:
        row.rollout.truncated = True
    assign_advantages(experience(rows), tiny_policy(), cfg)
    assert update(rows, TorchEngine(tiny_policy(), CFG), cfg, 1e-3) == {"train/empty_step": 1.0}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_paid_by_the_response(estimator):
    rows = _group([1.0, 0.0])
    for row in rows:
        row.reference_logps = [logp - 0.25 * (1 + row.rollout.sample_index) for logp in row.old_logps]
    paid = AlgorithmConfig(
        name="rloo", beta=0.1, epsilon=0.2, kl_place="reward", kl_estimator=estimator, reduction="sequence_sum_mean"
    )
    assign_advantages(experience(rows), tiny_policy(), replace(CFG, algorithm=paid))
    spent = [
        0.1 * sum(naive.kl_term(estimator, o, r)[0] for o, r in zip(row.old_logps, row.reference_logps, strict=True))
        for row in rows
    ]
    assert rows[0].advantages[0] == pytest.approx((1.0 - spent[0]) - (0.0 - spent[1]), rel=1e-4)


def test_scores_and_samples_have_one_temperature(inputs, tmp_path):
    """There is one setting for both, so a sampler's and the trainer's log-probs cannot be of two distributions."""
    cfg = replace(CONFIG, steps=1, updates_per_rollout=1, temperature=0.6)
    run(cfg, inputs, context(tmp_path / "cool"))
    run(replace(cfg, temperature=1.0), inputs, context(tmp_path / "warm"))
    cool, warm = records(tmp_path / "cool")[0], records(tmp_path / "warm")[0]
    assert cool["train/sampler_gap"] < 1e-5
    assert cool["train/entropy"] < warm["train/entropy"]
    assert cool["train/kl"] == pytest.approx(0.0, abs=1e-6)  # the reference too


def test_a_rollout_feeds_as_many_updates_as_it_is_told_to(inputs, tmp_path):
    """Two mini-batches and two epochs: one rollout for four steps; from the second on, what is trained has moved."""
    run(replace(CONFIG, epochs_per_rollout=2), inputs, context(tmp_path / "twice"))
    run(CONFIG, inputs, context(tmp_path / "once"))
    twice, once = records(tmp_path / "twice"), records(tmp_path / "once")
    assert ["rollout/tokens" in line for line in twice] == [True, False, False, False]
    assert ["rollout/tokens" in line for line in once] == [True, False, True, False]
    assert twice[:2] == once[:2]
    assert sum(line["train/tokens"] for line in twice[:2]) == sum(line["train/tokens"] for line in twice[2:])
    assert twice[2]["train/policy_drift"] > twice[0]["train/policy_drift"] == pytest.approx(0.0, abs=1e-9)


def test_after_a_reset_the_policy_is_its_own_reference(inputs, tmp_path):
    algorithm = replace(CONFIG.algorithm, reference_reset_steps=2)
    run(replace(CONFIG, algorithm=algorithm), inputs, context(tmp_path / "reset"))
    run(CONFIG, inputs, context(tmp_path / "kept"))
    reset, kept = records(tmp_path / "reset"), records(tmp_path / "kept")
    assert reset[2]["train/kl"] == pytest.approx(0.0, abs=1e-7)  # the first update after the reset
    assert kept[2]["train/kl"] > 1e-4
    assert reset[:2] == kept[:2]


def test_without_a_kl_no_reference_is_held(inputs, tmp_path):
    parameters = sum(param.numel() for param in load_policy(inputs["policy"].path).model.parameters())
    cfg = replace(CONFIG, steps=1, updates_per_rollout=1)
    assert run(cfg, inputs, context(tmp_path / "with"))["memory/state_bytes"] == 20 * parameters
    off = replace(cfg, algorithm=replace(CONFIG.algorithm, beta=0.0))
    assert run(off, inputs, context(tmp_path / "without"))["memory/state_bytes"] == 16 * parameters


def _group(rewards: list[float]):
    """Responses to one prompt."""
    rows = made_up_rows(1, len(rewards))
    for index, (row, reward) in enumerate(zip(rows, rewards, strict=True)):
        row.group, row.reward, row.rollout.sample_index, row.rollout.score = 0, reward, index, Score(reward)
    return rows


def test_no_option_is_forgotten_here():
    """A new knob of an algorithm needs a test here."""
    turned = {knob for knobs in OPTIONS for knob in knobs}
    tested_apart = {
        "std", "std_epsilon", "zero_variance", "max_resample_rounds", "kl_place", "mask_truncated", "truncated_reward",
        "overlong_buffer_tokens", "reference_reset_steps",
    }  # fmt: skip
    assert turned | tested_apart == set(vars(PLAIN))
