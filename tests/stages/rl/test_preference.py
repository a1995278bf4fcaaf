"""A learned part of the reward in rl and ppo: a problem is scored by what its row names, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from stages.parts.data.problems import load_problems, save_problems
from stages.parts.policy.reward_model import new_reward_model, save_reward_model
from stages.parts.verifiers.config import RewardConfig
from stages.ppo.config import PPOConfig
from stages.ppo.config import outline as ppo_outline
from stages.ppo.run import run as run_ppo
from stages.rl.config import RLConfig, outline
from stages.rl.run import run
from tests.stages.digits import digit_inputs
from tests.stages.ppo.test_run import CONFIG as PPO
from tests.stages.rl.test_run import CONFIG, context, records, weights

PREFERENCE = replace(CONFIG, reward=RewardConfig(accuracy=1.0, preference=1.0, require_box=False))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Artifact]:
    """Half of the problems are scored by accuracy, half by helpfulness; the reward model prefers something or other."""
    folder = tmp_path_factory.mktemp("preference")
    made = digit_inputs(folder)
    body = new_reward_model(made["policy"].path)
    with torch.no_grad():
        body.model.value_head.weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    save_reward_model(folder / "rm", dict(body.model.state_dict()), body, {"helpfulness": 0.0})
    splits = {split: load_problems(made["problems"].path, split) for split in ("train", "dev", "test")}
    for problems in splits.values():
        for problem in problems[::2]:
            problem.suite, problem.metadata = "helpful", {"scored_by": ["helpfulness"]}
    save_problems(folder / "mixed", splits)
    mixed = replace(made["problems"], path=folder / "mixed")
    return {**made, "mixed": mixed, "reward_model": Artifact("reward_model", "reward_model", folder / "rm", {}, "", "")}


def wired(inputs: dict[str, Artifact], problems: str = "mixed") -> dict[str, Artifact]:
    return {"policy": inputs["policy"], "problems": inputs[problems], "reward_model": inputs["reward_model"]}


MIXED = replace(PREFERENCE, suites={"reasoning": 0.5, "helpful": 0.5})


def test_each_problem_is_scored_by_what_it_names(inputs, tmp_path):
    run(MIXED, wired(inputs), context(tmp_path))
    first = records(tmp_path)[0]
    assert 0 < first["reward/helpfulness"] < 1 and 0 <= first["reward/accuracy"] <= 1
    assert "reward/harmlessness" not in first
    assert first["reward/mean"] == pytest.approx((first["reward/helpfulness"] + first["reward/accuracy"]) / 2)
    assert first["heldout/helpful/reward"] == pytest.approx(first["heldout/helpful/helpfulness"])
    for name in ("score", "logit", "rule", "agreement"):
        assert f"preference/helpful/{name}" in first and f"preference/reasoning/{name}" not in first
    assert first["preference/helpful/rule"] == first["heldout/helpful/pass@1"]  # the rule watches, it does not reward


def test_a_reward_model_changes_nothing_for_problems_that_do_not_name_it(inputs, tmp_path):
    rules = {name: inputs[name] for name in ("policy", "problems")}
    run(CONFIG, rules, context(tmp_path / "rules"))
    run(PREFERENCE, wired(inputs, "problems"), context(tmp_path / "judged"))
    assert records(tmp_path / "judged") == records(tmp_path / "rules")
    for name, tensor in weights(tmp_path / "rules").items():
        assert torch.equal(weights(tmp_path / "judged")[name], tensor), name


def test_resumes_to_the_bit(inputs, tmp_path):
    run(MIXED, wired(inputs), context(tmp_path / "whole"))
    for _ in range(4):
        stopped = context(tmp_path / "stopped")
        stopped.stop.set()
        with pytest.raises(Interrupted):
            run(MIXED, wired(inputs), stopped)
    run(MIXED, wired(inputs), context(tmp_path / "stopped"))
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    assert all(torch.equal(weights(tmp_path / "stopped")[n], t) for n, t in weights(tmp_path / "whole").items())


def test_the_policy_learns_what_the_reward_model_prefers(inputs, tmp_path):
    cfg = replace(
        MIXED, suites={"helpful": 1.0}, steps=12, prompts_per_step=8, G=8, learning_rate=3e-3, monitor_every_steps=12
    )
    metrics = run(cfg, wired(inputs), context(tmp_path))
    first = records(tmp_path)[0]
    assert metrics["heldout/helpful/helpfulness"] > first["heldout/helpful/helpfulness"] + 0.1
    assert metrics["preference/helpful/logit"] > first["preference/helpful/logit"]


def test_ppo_takes_it_too(inputs, tmp_path):
    cfg = replace(PPO, suites={"reasoning": 0.5, "helpful": 0.5}, reward=PREFERENCE.reward)
    run_ppo(cfg, wired(inputs), context(tmp_path))
    first = records(tmp_path)[0]
    assert 0 < first["reward/helpfulness"] < 1 and "preference/helpful/score" in first


def test_without_a_reward_model_the_stage_fails_with_the_remedy(inputs, tmp_path):
    with pytest.raises(StageFailed, match=r"wire inputs\.reward_model"):
        run(MIXED, {"policy": inputs["policy"], "problems": inputs["mixed"]}, context(tmp_path))


FACTS = {
    "policy": {},
    "problems": {
        "suites": {"reasoning": {}, "helpful": {}},
        "scored_by": {"helpful": ["helpfulness", "format"]},
    },
}


@pytest.mark.parametrize(("kind", "head"), [(RLConfig, outline), (PPOConfig, ppo_outline)])
def test_faults_while_planning(kind, head):
    def told(model: bool, **reward: float) -> list[str]:
        cfg = kind(seed=0, G=4, suites={"reasoning": 0.5, "helpful": 0.5}, reward=RewardConfig(**reward))
        cfg.algorithm.beta, cfg.algorithm.epsilon = 0.0, 0.2
        return [fault.key for fault in head(cfg, FACTS | ({"reward_model": {}} if model else {})).faults]

    assert told(True, preference=1.0) == []
    assert told(False, preference=1.0) == ["reward.preference"]
    assert told(False) == ["suites"]
    assert told(True) == ["reward"]  # neither helpfulness nor format has a weight
    assert told(True, format=1.0) == []  # watched by the reward model, rewarded by rules


def test_a_weight_that_is_off_is_in_no_fingerprint():
    assert "reward.preference" in outline(CONFIG, {"policy": {}, "problems": {}}).redundant
    assert "reward.preference" not in outline(PREFERENCE, {"policy": {}, "problems": {}}).redundant
    assert [fault.key for fault in replace(PREFERENCE, supervision="process").faults()] == ["reward.preference"]
    assert [fault.key for fault in RewardConfig(preference=-1.0).faults()] == ["preference"]
