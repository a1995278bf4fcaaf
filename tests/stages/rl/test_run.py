"""The RL stage on a small real model: it runs, it resumes to the bit, and awkward rollouts are survived."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from pipeline.config import EngineConfig
from pipeline.tracking import Context
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.config import LoRAConfig
from stages.parts.policy.model import load_policy
from stages.parts.rollouts.engine import TransformersEngine
from stages.parts.verifiers.config import RewardConfig
from stages.rl.config import RLConfig, outline
from stages.rl.run import run
from tests.stages.digits import digit_inputs

ALGORITHM = AlgorithmConfig(name="grpo", beta=0.01, epsilon=0.2)
CONFIG = RLConfig(
    seed=0,
    steps=4,
    prompts_per_step=4,
    G=4,
    updates_per_rollout=2,
    max_response_tokens=6,
    learning_rate=1e-3,
    tokens_per_microbatch=200,
    algorithm=ALGORITHM,
    reward=RewardConfig(accuracy=1.0, require_box=False),
    monitor_every_steps=2,
    monitor_problems=4,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Artifact]:
    return digit_inputs(tmp_path_factory.mktemp("rl"))


def context(folder: Path) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    return Context(stage="reasoning_rl", workdir=folder, seed=0)


def records(folder: Path) -> list[dict]:
    """Metric lines without clock values."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def test_trains_and_logs_what_there_is_to_watch(inputs, tmp_path):
    metrics = run(CONFIG, inputs, context(tmp_path))
    lines = records(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for key in ("reward/mean", "reward/within_group_std", "groups/all_right", "groups/all_wrong", "length/mean",
                "rollout/truncated", "behaviour/reflection", "heldout/reasoning/pass@1"):  # fmt: skip
        assert key in lines[0], key
    for key in (
        "train/entropy",
        "train/kl",
        "train/clip_low",
        "train/clip_high",
        "train/grad_norm",
        "train/sampler_gap",
    ):
        assert all(key in line for line in lines), key
    assert lines[0]["train/ratio"] == pytest.approx(1.0, abs=1e-6)  # nothing lies between rollout and first update
    assert lines[1]["train/ratio_max"] > 1.0  # the second update of the rollout is off-policy
    assert lines[0]["train/kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is the stage's own input
    assert metrics["train/steps"] == 4
    before = load_file(inputs["policy"].path / "model.safetensors")
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(tmp_path).items())


def test_resuming_within_a_rollout_gives_the_same_bits(inputs, tmp_path):
    run(CONFIG, inputs, context(tmp_path / "whole"))
    stopped = context(tmp_path / "stopped")
    stopped.stop.set()  # every step checkpoints and stops: after 1, 2 and 3 steps, so also inside rollouts
    cfg = replace(CONFIG, algorithm=replace(ALGORITHM, reference_reset_steps=1))
    run(cfg, inputs, context(tmp_path / "whole_reset"))
    for folder, settings in (("stopped", CONFIG), ("stopped_reset", cfg)):
        for _ in range(4):
            again = context(tmp_path / folder)
            again.stop.set()
            with pytest.raises(Interrupted):
                run(settings, inputs, again)
        run(settings, inputs, context(tmp_path / folder))
        whole = tmp_path / folder.replace("stopped", "whole")
        assert records(tmp_path / folder) == records(whole)
        for name, tensor in weights(whole).items():
            assert torch.equal(weights(tmp_path / folder)[name], tensor), name


def test_the_update_does_not_depend_on_the_microbatch(inputs, tmp_path):
    run(CONFIG, inputs, context(tmp_path / "small"))
    run(replace(CONFIG, tokens_per_microbatch=100_000), inputs, context(tmp_path / "large"))
    run(replace(CONFIG, packing=True), inputs, context(tmp_path / "packed"))
    for other in ("large", "packed"):
        for small, large in zip(records(tmp_path / "small"), records(tmp_path / other), strict=True):
            assert small["train/grad_norm"] == pytest.approx(large["train/grad_norm"], rel=1e-4)


NEVER = RewardConfig(accuracy=0.0, format=1.0)  # a random model never closes a think block: all groups are constant


@pytest.mark.parametrize("choice", ["drop", "resample"])
def test_a_stage_of_constant_groups_alone_has_failed(choice, inputs, tmp_path):
    """Every step is survived; in the end nothing was trained, and no model is handed on as if it were."""
    algorithm = replace(ALGORITHM, zero_variance=choice, max_resample_rounds=1)
    with pytest.raises(StageFailed, match="none of 4 steps had anything to train on"):
        run(replace(CONFIG, reward=NEVER, algorithm=algorithm), inputs, context(tmp_path))
    lines = records(tmp_path)
    assert [line["train/empty_step"] for line in lines] == [1.0] * 4
    assert [line["train/empty_steps"] for line in lines] == [1.0, 2.0, 3.0, 4.0]
    assert not (tmp_path / "model").exists()


def test_kept_constant_groups_train_their_kl(inputs, tmp_path):
    run(replace(CONFIG, reward=NEVER), inputs, context(tmp_path))
    assert [line["train/empty_step"] for line in records(tmp_path)] == [0.0] * 4


def test_empty_steps_beside_others_are_survived_and_counted(inputs, tmp_path):
    """Groups of two with a tenth of the answers right: most are constant."""
    algorithm = replace(ALGORITHM, zero_variance="drop")
    cfg = replace(CONFIG, G=2, prompts_per_step=1, steps=8, algorithm=algorithm)
    metrics = run(cfg, inputs, context(tmp_path))
    lines = records(tmp_path)
    empty = sum(line["train/empty_step"] for line in lines)
    assert 0 < empty < 8 and metrics["train/empty_steps"] == empty
    assert f"{empty:.0f} of 8 steps had nothing to train on" in (tmp_path / "notes.jsonl").read_text()


def test_steps_are_supervised_where_the_config_says_so(inputs, tmp_path):
    run(replace(CONFIG, supervision="process"), inputs, context(tmp_path / "process"))
    run(CONFIG, inputs, context(tmp_path / "outcome"))
    process, outcome = records(tmp_path / "process"), records(tmp_path / "outcome")
    assert process[0]["steps/mean"] == 0.0 and process[0]["steps/right"] is None  # this model writes digits alone:
    assert process[0]["train/grad_norm"] == pytest.approx(outcome[0]["train/grad_norm"])  # the answer is the one step


def test_shuffled_rewards_keep_their_values_and_lose_their_owners(inputs, tmp_path):
    run(CONFIG, inputs, context(tmp_path / "true"))
    run(replace(CONFIG, reward=replace(CONFIG.reward, shuffle=True)), inputs, context(tmp_path / "shuffled"))
    true, shuffled = records(tmp_path / "true")[0], records(tmp_path / "shuffled")[0]
    assert true["reward/mean"] == pytest.approx(shuffled["reward/mean"])
    assert true["train/grad_norm"] != shuffled["train/grad_norm"]


def test_a_sampler_that_misses_a_sync_is_caught(inputs, tmp_path, monkeypatch):
    """Under ZeRO-3 the sampler has weights of its own: those of before the first rollout, where no sync reaches it."""
    cfg = replace(CONFIG, learning_rate=1e-2, engine=EngineConfig(kind="deepspeed", zero_stage=3))
    run(cfg, inputs, context(tmp_path / "synced"))
    monkeypatch.setattr(TransformersEngine, "load_weights", lambda self, state: None)
    with pytest.raises(StageFailed, match="the sampler does not run on the trainer's weights"):
        run(cfg, inputs, context(tmp_path / "stale"))
    assert [line["step"] for line in records(tmp_path / "stale")] == [1, 2]  # those of the first rollout


def test_a_suite_without_problems_is_refused(inputs, tmp_path):
    with pytest.raises(StageFailed, match="general"):
        run(replace(CONFIG, suites={"general": 1.0}), inputs, context(tmp_path))


def test_an_adapter_leaves_beside_its_base_where_that_is_asked_for(inputs, tmp_path):
    lora = LoRAConfig(rank=2, merge=False, target_modules=["q_proj", "v_proj"])
    run(replace(CONFIG, lora=lora), inputs, surroundings := context(tmp_path))
    assert (tmp_path / "model" / "adapter_config.json").exists()
    assert surroundings.facts["model"]["adapter"] is True
    assert load_policy(tmp_path / "model").model.num_parameters() == surroundings.facts["model"]["parameters"]


def test_an_adapter_on_an_adapter_is_refused():
    cfg = replace(CONFIG, lora=LoRAConfig(rank=2, merge=False))
    facts = {"policy": {"adapter": True}, "problems": {}}
    assert [fault.key for fault in outline(cfg, facts).faults] == ["lora.merge"]
    assert outline(replace(cfg, lora=LoRAConfig(rank=2)), facts).faults == []
    assert outline(cfg, facts | {"policy": {"adapter": False}}).outputs["model"]["adapter"] is True
