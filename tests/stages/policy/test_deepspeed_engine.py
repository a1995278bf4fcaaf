"""DeepSpeed on one rank: what differs from float32 ZeRO without extras. Equality with torch is in test_invariance."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

from pipeline.artifacts import Held, StageFailed, Work, parameter_count
from pipeline.config import EngineConfig
from pipeline.costs import held_bytes
from stages.parts.policy.batch import pad_batch
from stages.parts.policy.config import LoRAConfig, OptimizerConfig, TrainedStageConfig
from stages.parts.policy.deepspeed_engine import deepspeed_config
from stages.parts.policy.facts import shape
from stages.parts.policy.invariance import relative
from stages.parts.policy.train_engine import build_engine
from tests.stages.policy.tiny import CPU, ragged, tiny_policy

SEQUENCES, MASKS = ragged(6)
BATCH = pad_batch(SEQUENCES, MASKS, 0, CPU)
CFG = TrainedStageConfig(kind="x", seed=0, steps=3, dtype="float32")


def zero(stage: int, cfg=CFG, **settings):
    return replace(cfg, engine=EngineConfig(kind="deepspeed", zero_stage=stage, **settings))


def trained(cfg, dtype=torch.float32, steps=3) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)  # of the adapter's down-projection
    engine = build_engine(tiny_policy(dtype=dtype), cfg, None)
    for _ in range(steps):
        engine.backward(-engine.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum())
        engine.step(1e-2)
    return {name: tensor.float().clone() for name, tensor in engine.full_state().items()}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_with_float32_masters(stage):
    cfg = replace(CFG, dtype="bfloat16")
    assert relative(trained(zero(stage, cfg), torch.bfloat16), trained(cfg, torch.bfloat16)) < 5e-3


def test_bfloat16_without_zero_is_refused():
    with pytest.raises(StageFailed, match="engine=torch or engine=zero1"):
        build_engine(tiny_policy(dtype=torch.bfloat16), zero(0), None)


def test_offload():
    assert relative(trained(zero(3, offload=True)), trained(CFG)) < 1e-4


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_and_gradient_checkpointing(stage):
    cfg = replace(CFG, lora=LoRAConfig(rank=2))
    assert relative(trained(zero(stage, cfg, gradient_checkpointing=True)), trained(cfg)) < 1e-4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_is_not_finite_changes_nothing(stage):
    cfg = zero(stage, replace(CFG, optimizer=OptimizerConfig(nonfinite="skip", max_skipped_steps=1)))
    engine = build_engine(tiny_policy(), cfg, None)
    before = {name: tensor.clone() for name, tensor in engine.full_state().items()}
    engine.backward(engine.logps(BATCH).logps_BT.sum() * math.nan)
    assert engine.step(1e-2).skipped and engine.update.updates == 0
    assert relative(engine.full_state(), before) == 0.0
    engine.backward(-engine.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum())
    assert not engine.step(1e-2).skipped
    engine.backward(engine.logps(BATCH).logps_BT.sum() * math.inf)
    with pytest.raises(StageFailed, match="2 steps were not finite"):
        engine.step(1e-2)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_infinite_loss_with_a_finite_gradient_changes_nothing(stage):
    engine = build_engine(tiny_policy(), zero(stage, replace(CFG, optimizer=OptimizerConfig(nonfinite="skip"))), None)
    before = {name: tensor.clone() for name, tensor in engine.full_state().items()}
    engine.backward(engine.logps(BATCH).logps_BT.sum() + math.inf)
    assert engine.step(1e-2).skipped and engine.update.updates == 0 and engine.guard.skipped == 1
    assert relative(engine.full_state(), before) == 0.0
    engine.backward(-engine.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum())
    assert not engine.step(1e-2).skipped  # and nothing is left of the gradient that was refused
    plain = build_engine(tiny_policy(), CFG, None)
    plain.backward(-plain.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum())
    plain.step(1e-2)
    assert relative(engine.full_state(), plain.full_state()) < 1e-5


def test_zero_3_keeps_nothing_whole_but_vectors():
    """DeepSpeed's own thresholds would leave every parameter of a small model on every rank."""
    engine = build_engine(tiny_policy(), zero(3), None)
    whole = {name for name, param in engine.params.items() if param.ds_persist}
    assert whole == {name for name, param in engine.params.items() if len(param.ds_shape) == 1}


def test_zero_3_gives_back_what_it_put_together():
    """By DeepSpeed's own rule for parameters that are used again, 99% of this model are whole after a forward pass."""
    engine = build_engine(tiny_policy(num_hidden_layers=6), zero(3), None)
    params = list(engine.params.values())
    held = []
    for _ in range(2):  # the first pass learns the order of the modules
        loss = -engine.logps(BATCH).logps_BT.sum()
        held = [param.ds_numel for param in params if param.ds_status == ZeroParamStatus.AVAILABLE]
        engine.backward(loss)
        engine.step(1e-2)
    assert 0 < sum(held) < 0.3 * sum(param.ds_numel for param in params)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_parameter_larger_than_the_bucket(stage, monkeypatch):
    """A bucket of 32 x 32, an embedding of 264 x 32."""
    monkeypatch.setattr("pipeline.config.SMALLEST_BUCKET", 0)
    assert relative(trained(zero(stage)), trained(CFG)) < 1e-4


def test_a_large_vocabulary_in_chunks():
    """The head runs again in the backward pass, where ZeRO-3 must gather it again."""
    gradients = []
    unclipped = replace(CFG, optimizer=OptimizerConfig(max_grad_norm=0.0))
    for cfg, at_once in ((unclipped, 2**25), (zero(3, unclipped), 264 * 5)):
        engine = build_engine(tiny_policy(), cfg, None, records=True)
        engine.backward(engine.logps(BATCH, logits_at_once=at_once).logps_BT.sum())
        engine.step(1e-2)
        gradients.append(engine.gradients())
    assert relative(*gradients) < 1e-5


def test_the_config_is_derived_from_ours():
    model = tiny_policy(dtype=torch.bfloat16, hidden_size=1024).model
    config = deepspeed_config(zero(3, offload=True), world_size=8, model=model)
    assert config["train_batch_size"] == 8 * config["train_micro_batch_size_per_gpu"]
    assert config["zero_optimization"]["stage"] == 3 and config["bf16"]["enabled"]
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert config["zero_optimization"]["reduce_bucket_size"] == 1024 * 1024
    assert config["gradient_clipping"] == CFG.optimizer.max_grad_norm


@pytest.mark.parametrize(("dtype", "stage"), [(torch.float32, 1), (torch.bfloat16, 1), (torch.bfloat16, 3)])
def test_the_plan_counts_the_buffers_that_zero_runs_with(dtype, stage):
    policy = tiny_policy(dtype=dtype, hidden_size=1024, num_hidden_layers=8)
    text = policy.model.config
    facts = shape(text.to_dict()) | {"vocab_size": text.vocab_size}
    assert parameter_count(facts) == sum(param.numel() for param in policy.model.parameters())
    work = Work(held=(Held("policy", facts, trained=True),), dtype=str(dtype).removeprefix("torch."), steps=1)
    told = held_bytes(work, zero(stage).engine, 4, dtype.itemsize, gpu=True)
    config = deepspeed_config(zero(stage), world_size=4, model=policy.model)["zero_optimization"]
    assert told["buffers"] == dtype.itemsize * config["reduce_bucket_size"] == dtype.itemsize * 1024 * 1024
    assert told["optimizer"] * 4 == 12 * parameter_count(facts)
    assert config["stage"] == (2 if (dtype, stage) == (torch.bfloat16, 1) else stage)
    if stage == 3:
        assert told["gathered"] == dtype.itemsize * config["stage3_max_live_parameters"]
