"""Checkpoints: exact, atomic, two kept, and never believed without their digests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.artifacts import StageFailed
from pipeline.config import EngineConfig
from stages.parts.policy.batch import pad_batch
from stages.parts.policy.checkpoint import MANIFEST, load_checkpoint, save_checkpoint
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.train_engine import build_engine
from tests.stages.policy.tiny import CPU, context_in, ragged, tiny_policy

SEQUENCES, MASKS = ragged(6)
BATCH = pad_batch(SEQUENCES, MASKS, 0, CPU)
CFG = TrainedStageConfig(kind="x", seed=0, steps=3, dtype="float32")


def engine_of(cfg=CFG, seed=0, dtype=torch.float32):
    return build_engine(tiny_policy(seed, dtype), cfg, context=None)


def train(engine, steps=1):
    for _ in range(steps):
        engine.backward(-engine.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum())
        engine.step(1e-2)


def state_of(engine):
    return {name: tensor.clone() for name, tensor in engine.full_state().items()}


def assert_same(left, right):
    assert set(left) == set(right)
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_bit_for_bit(tmp_path, dtype):
    context = context_in(tmp_path)
    straight = engine_of(dtype=dtype)
    train(straight, 2)
    save_checkpoint(context, 2, straight, {"cursor": 7})
    noise = torch.rand(3)
    train(straight, 2)
    resumed = engine_of(seed=1, dtype=dtype)
    assert load_checkpoint(context, resumed) == (2, {"cursor": 7})
    assert torch.equal(torch.rand(3), noise)  # RNG state came back
    train(resumed, 2)
    assert_same(state_of(straight), state_of(resumed))
    assert "resumed from step 2" in (tmp_path / "notes.jsonl").read_text()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_any_engine_reads_what_another_wrote(tmp_path, stage):
    """torch -> ZeRO -> torch, against torch alone."""
    zero = replace(CFG, engine=EngineConfig(kind="deepspeed", zero_stage=stage))
    straight = engine_of()
    train(straight, 4)
    context, first = context_in(tmp_path), engine_of()
    train(first, 2)
    save_checkpoint(context, 2, first, {})
    second = engine_of(zero, seed=1)
    load_checkpoint(context, second)
    assert_same(state_of(first), state_of(second))
    train(second, 1)
    save_checkpoint(context, 3, second, {})
    third = engine_of(seed=2)
    load_checkpoint(context, third)
    assert_same(state_of(second), state_of(third))
    train(third, 1)
    for name, tensor in state_of(straight).items():
        assert torch.allclose(tensor, third.full_state()[name], atol=1e-5), name


def test_metrics_after_the_checkpoint_are_cut(tmp_path):
    context, engine = context_in(tmp_path), engine_of()
    context.log(1, {"train/loss": 1.0})
    save_checkpoint(context, 1, engine, {})
    context.log(2, {"train/loss": 0.5})
    load_checkpoint(context, engine)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_without_a_checkpoint_everything_starts_over(tmp_path):
    context = context_in(tmp_path)
    context.log(1, {"train/loss": 1.0})
    (context.checkpoints / ".draft-00000002").mkdir(parents=True)  # a kill while writing
    assert load_checkpoint(context, engine_of()) is None
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def three_checkpoints(tmp_path):
    context, engine = context_in(tmp_path), engine_of()
    for step in (1, 2, 3):
        train(engine)
        save_checkpoint(context, step, engine, {})
    return context


def test_two_are_kept(tmp_path):
    context = three_checkpoints(tmp_path)
    assert sorted(path.name for path in context.checkpoints.iterdir()) == ["step-00000002", "step-00000003"]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["state-0.safetensors", "rng-0.pt", MANIFEST])
def test_a_damaged_checkpoint_is_detected_and_the_one_before_it_used(tmp_path, damage, name):
    context = three_checkpoints(tmp_path)
    damage(context.checkpoints / "step-00000003" / name)
    step, _ = load_checkpoint(context, engine_of())
    assert step == 2
    assert "step-00000003 is damaged" in (tmp_path / "notes.jsonl").read_text()


def test_all_damaged_is_a_failure_not_a_silent_restart(tmp_path):
    context = three_checkpoints(tmp_path)
    for folder in context.checkpoints.iterdir():
        flip_a_bit(folder / "state-0.safetensors")
    with pytest.raises(StageFailed, match=r"every checkpoint in .* is damaged"):
        load_checkpoint(context, engine_of())


def test_another_models_checkpoint_is_refused(tmp_path):
    context, engine = context_in(tmp_path), engine_of()
    save_checkpoint(context, 1, engine, {})
    smaller = build_engine(tiny_policy(num_hidden_layers=1), CFG, context=None)
    with pytest.raises(StageFailed, match="tensors of another model"):
        load_checkpoint(context, smaller)
