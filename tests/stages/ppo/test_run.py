"""The PPO stage on a small real model: it learns, resumes to the bit, and hands on a language model alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.artifacts import Artifact, Interrupted
from pipeline.tracking import Context
from stages.parts.policy.config import LoRAConfig
from stages.parts.policy.model import load_policy
from stages.parts.verifiers.config import RewardConfig
from stages.ppo.config import PPOAlgorithmConfig, PPOConfig, outline
from stages.ppo.run import run
from tests.stages.digits import digit_inputs

ALGORITHM = PPOAlgorithmConfig(beta=0.01, epsilon=0.2)
CONFIG = PPOConfig(
    seed=0,
    steps=4,
    prompts_per_step=4,
    G=2,
    updates_per_rollout=2,
    max_response_tokens=6,
    learning_rate=1e-3,
    critic_learning_rate=3e-3,
    tokens_per_microbatch=200,
    algorithm=ALGORITHM,
    reward=RewardConfig(accuracy=1.0, require_box=False),
    monitor_every_steps=2,
    monitor_problems=4,
)
VARIANTS = {
    "separate": CONFIG,
    "head": replace(CONFIG, critic="head"),
    "one response": replace(CONFIG, G=1, epochs_per_rollout=2, algorithm=replace(ALGORITHM, beta=0.0)),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Artifact]:
    return digit_inputs(tmp_path_factory.mktemp("ppo"))


def context(folder: Path, stop: bool = False) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    made = Context(stage="reasoning_ppo", workdir=folder, seed=0)
    if stop:
        made.stop.set()
    return made


def records(folder: Path) -> list[dict]:
    """Metric lines without clock values."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
def test_trains_and_resumes_to_the_bit(variant, inputs, tmp_path):
    """Stopped after each of the four steps, also inside a rollout and inside its second epoch."""
    cfg = VARIANTS[variant]
    metrics = run(cfg, inputs, context(tmp_path / "whole"))
    for _ in range(4):
        with pytest.raises(Interrupted):
            run(cfg, inputs, context(tmp_path / "stopped", stop=True))
    run(cfg, inputs, context(tmp_path / "stopped"))
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    before = load_file(inputs["policy"].path / "model.safetensors")
    after, again = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert set(after) == set(again) == set(before)  # the critic stays behind
    assert all(torch.equal(again[name], tensor) for name, tensor in after.items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in after.items())
    lines = records(tmp_path / "whole")
    for key in ("train/loss", "train/grad_norm", "train/entropy", "critic/loss", "critic/clipped"):
        assert all(math.isfinite(line[key]) for line in lines), key
    assert lines[0]["train/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert lines[0]["critic/value"] == 0.0  # a fresh critic expects nothing
    assert lines[0]["critic/clipped"] == 0.0
    assert lines[1]["train/ratio"] != pytest.approx(1.0, abs=1e-6)  # the second update of the rollout is off-policy
    rollouts = [line for line in lines if "critic/explained_variance" in line]
    assert len(rollouts) == 4 // (2 * cfg.epochs_per_rollout)
    if cfg.algorithm.beta > 0:
        assert rollouts[0]["reward/kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is the stage's own input
    assert metrics["memory/peak_bytes"] >= 0
    assert metrics["memory/state_bytes"] > 0


def test_states_of_a_critic_and_of_a_reference_are_counted(inputs, tmp_path):
    """float32: 16 bytes a trained parameter, 4 a frozen one."""
    policy = load_policy(inputs["policy"].path)
    trained = sum(param.numel() for param in policy.model.parameters())
    steps = replace(CONFIG, steps=1, updates_per_rollout=1)
    needed = run(steps, inputs, context(tmp_path / "separate"))["memory/state_bytes"]
    assert needed == 16 * trained + 16 * (trained + 33) + 4 * trained  # tied embeddings: the body is the model
    alone = replace(steps, critic="head", algorithm=replace(ALGORITHM, beta=0.0))
    assert run(alone, inputs, context(tmp_path / "head"))["memory/state_bytes"] == 16 * (trained + 33)


def test_an_adapter_leaves_beside_its_base_where_that_is_asked_for(inputs, tmp_path):
    lora = LoRAConfig(rank=2, merge=False, target_modules=["q_proj", "v_proj"])
    cfg = replace(CONFIG, lora=lora)
    run(cfg, inputs, surroundings := context(tmp_path))
    declared = outline(cfg, {"policy": {"adapter": False}, "problems": {}}).outputs["model"]
    assert declared["adapter"] is surroundings.facts["model"]["adapter"] is True
    base, trained = load_policy(inputs["policy"].path).model, load_policy(tmp_path / "model").model
    moved = [n for n, tensor in trained.state_dict().items() if not torch.equal(tensor, base.state_dict()[n])]
    assert moved and all("q_proj" in name or "v_proj" in name for name in moved)


def test_an_adapter_on_an_adapter_is_refused():
    cfg = replace(CONFIG, lora=LoRAConfig(rank=2, merge=False))
    facts = {"policy": {"adapter": True}, "problems": {}}
    assert [fault.key for fault in outline(cfg, facts).faults] == ["lora.merge"]
    assert outline(replace(cfg, lora=LoRAConfig(rank=2)), facts).outputs["model"]["adapter"] is False
