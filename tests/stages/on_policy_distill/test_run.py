"""The stage on a small real model: it learns from its teacher's word alone, and it resumes to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.artifacts import Artifact, Interrupted, StageFailed
from pipeline.tracking import Context
from stages.on_policy_distill.run import run
from stages.parts.policy.model import load_policy
from tests.stages.on_policy_distill.world import ALGORITHM, CONFIG, distill_inputs, records


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Artifact]:
    return distill_inputs(tmp_path_factory.mktemp("on_policy"))


def context(folder: Path) -> Context:
    folder.mkdir(parents=True, exist_ok=True)
    return Context(stage="on_policy", workdir=folder, seed=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize("jsd_weight", [0.0, 0.5, 1.0])
def test_it_learns_what_the_teacher_would_say(inputs, tmp_path, jsd_weight):
    """A tenth of the answers is 3 at first; no reward says that this is what is wanted."""
    cfg = replace(CONFIG, steps=24, learning_rate=2e-3, jsd_weight=jsd_weight)
    metrics = run(cfg, inputs, context(tmp_path))
    lines = records(tmp_path)
    assert lines[0]["rollout/accuracy"] < 0.3 and metrics["rollout/accuracy"] > 0.6
    assert lines[-1]["train/own_divergence"] < 0.5 * lines[0]["train/own_divergence"]
    assert metrics["teacher/total_tokens"] == sum(line["teacher/tokens"] for line in lines)
    assert lines[0]["teacher/tokens"] > lines[0]["train/tokens"] == lines[0]["train/own_tokens"]
    for key in ("train/entropy", "train/sampler_gap", "reward/mean", "heldout/reasoning/pass@1", "length/mean"):
        assert key in lines[0], key
    assert lines[0]["train/sampler_gap"] == pytest.approx(0.0, abs=1e-4)
    load_policy(tmp_path / "model", "float32")


def test_half_of_a_step_may_be_conversations(inputs, tmp_path):
    run(replace(CONFIG, on_policy_fraction=0.5, G=2), inputs, context(tmp_path))
    for line in records(tmp_path):
        assert 0 < line["train/own_tokens"] < line["train/tokens"]
        assert line["train/data_divergence"] > 0 and line["train/own_divergence"] > 0
    whole = replace(CONFIG, on_policy_fraction=0.5, G=2)
    assert (whole.sampled_prompts, whole.conversations) == (4, 8)


def test_without_samples_it_is_supervised(inputs, tmp_path):
    metrics = run(replace(CONFIG, on_policy_fraction=0.0), inputs, context(tmp_path))
    assert "train/own_divergence" not in metrics and "rollout/accuracy" not in metrics
    lines = records(tmp_path)
    assert lines[-1]["train/data_divergence"] < lines[0]["train/data_divergence"]


def test_resuming_within_a_rollout_gives_the_same_bits(inputs, tmp_path):
    cfg = replace(CONFIG, on_policy_fraction=0.5, G=2, reward_weight=0.5)
    whole = run(cfg, inputs, context(tmp_path / "whole"))
    for _ in range(4):  # every step checkpoints and stops: after 1, 2 and 3 steps, so also inside rollouts
        stopped = context(tmp_path / "stopped")
        stopped.stop.set()
        with pytest.raises(Interrupted):
            run(cfg, inputs, stopped)
    again = run(cfg, inputs, context(tmp_path / "stopped"))
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    assert again["teacher/total_tokens"] == whole["teacher/total_tokens"]
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(weights(tmp_path / "stopped")[name], tensor), name


def test_a_reward_beside_the_teacher_is_learned_from(inputs, tmp_path):
    cfg = replace(CONFIG, G=4, prompts_per_step=4)
    run(replace(cfg, reward_weight=1.0), inputs, context(tmp_path / "with"))
    run(cfg, inputs, context(tmp_path / "without"))
    beside, alone = records(tmp_path / "with")[0], records(tmp_path / "without")[0]
    assert beside["train/own_divergence"] == pytest.approx(alone["train/own_divergence"], rel=1e-6)
    assert beside["train/grad_norm"] != alone["train/grad_norm"]
    assert "train/reward_loss" in beside and "train/reward_loss" not in alone


def test_a_stage_that_trains_nothing_has_failed(inputs, tmp_path):
    """Every response is cut off after a token, and what is cut off is masked."""
    cfg = replace(CONFIG, max_response_tokens=1, algorithm=replace(ALGORITHM, mask_truncated=True))
    with pytest.raises(StageFailed, match="none of 4 steps had anything to train on"):
        run(cfg, inputs, context(tmp_path))


def test_a_teacher_of_another_tokenizer_is_refused(inputs, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    text = (inputs["teacher"].path / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<think>", "<thought>"))
    with pytest.raises(StageFailed, match=r"the teacher's tokenizer .* is not the student's"):
        run(CONFIG, inputs | {"teacher": replace(inputs["teacher"], path=other)}, context(tmp_path / "stage"))
