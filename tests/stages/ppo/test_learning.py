"""PPO learns: the policy to give the answer that is rewarded, its critic to expect what comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stages.parts.experience.rows import count_rows
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.train_engine import TorchEngine
from stages.ppo.run import run
from stages.ppo.update import update_critic
from tests.stages.digits import digit_inputs, threes_or_hopeless
from tests.stages.ppo.rows import made_up_rows
from tests.stages.ppo.test_run import ALGORITHM, CONFIG, context, records
from tests.stages.ppo.test_update import CFG, critic_alone


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learning")
    return digit_inputs(folder) | {"problems": threes_or_hopeless(folder / "threes")}


@pytest.mark.parametrize("critic", ["separate", "head"])
def test_the_policy_learns_and_its_critic_comes_to_expect_it(critic, inputs, tmp_path):
    """Half of the prompts want a 3, a tenth of the responses at first; the other half can never be answered, which a
    critic of its own comes to know from the prompt. The KL to the reference is paid for on the way."""
    cfg = replace(
        CONFIG, critic=critic, steps=90, prompts_per_step=8, G=4, learning_rate=2e-3, value_weight=1.0,
        algorithm=replace(ALGORITHM, beta=0.001), monitor_every_steps=100, tokens_per_microbatch=2000,
    )  # fmt: skip
    run(cfg, inputs, context(tmp_path))
    rollouts = [line for line in records(tmp_path) if "critic/value" in line]

    def at_the_end(key: str) -> float:
        return sum(line[key] for line in rollouts[-4:]) / 4

    assert rollouts[0]["reward/mean"] < 0.1
    assert at_the_end("reward/mean") > 0.35  # of 0.5
    assert rollouts[0]["critic/value"] == 0.0
    assert at_the_end("critic/value") == pytest.approx(at_the_end("reward/mean"), abs=0.2)
    assert at_the_end("reward/kl") > 0.0
    if critic == "separate":
        assert rollouts[0]["critic/explained_variance"] == 0.0
        assert at_the_end("critic/explained_variance") > 0.5


@pytest.mark.parametrize("clip", [None, 0.2])
def test_a_critic_fits_the_returns_of_a_rollout(clip, tmp_path):
    """The value loss falls where returns stand still; a clip of values keeps it from going all the way at once."""
    cfg = replace(
        CFG, critic="separate", optimizer=OptimizerConfig(max_grad_norm=0.0),
        algorithm=replace(CFG.algorithm, value_clip=clip),
    )  # fmt: skip
    rows = made_up_rows(0, 6)
    for row in rows:
        assert row.old_values is not None
        row.old_values = [0.0] * len(row.old_values)
        row.returns = [row.reward] * len(row.old_values)
    engine = TorchEngine(critic_alone(cfg), cfg)
    losses = [update_critic(rows, engine, cfg, count_rows(rows, cfg), 3e-3)["critic/loss"] for _ in range(60)]
    at_rest = (
        0.5
        * sum(row.reward * len(row.rollout.response_ids) for row in rows)
        / sum(len(row.rollout.response_ids) for row in rows)
    )  # of values of 0
    assert losses[-1] < (0.1 * at_rest if clip is None else 0.75 * at_rest)
    if clip is not None:
        assert losses[-1] == pytest.approx((1 - clip) ** 2 * at_rest, rel=0.15)
