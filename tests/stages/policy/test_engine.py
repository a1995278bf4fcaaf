"""The torch engine: arithmetic against torch's own, guards, adapters, low precision."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
import torch

from pipeline.artifacts import StageFailed
from pipeline.config import EngineConfig
from stages.parts.policy.batch import pad_batch
from stages.parts.policy.config import LoRAConfig, OptimizerConfig, TrainedStageConfig
from stages.parts.policy.model import load_policy, save_policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.train_engine import TorchEngine, build_engine
from tests.stages.policy.tiny import CPU, context_in, ragged, tiny_policy

SEQUENCES, MASKS = ragged(6)
BATCH = pad_batch(SEQUENCES, MASKS, 0, CPU)
CFG = TrainedStageConfig(kind="x", seed=0, steps=3, dtype="float32")


def nll(engine):
    return -engine.logps(BATCH).logps_BT.sum() / BATCH.mask_BT.sum()


def test_three_steps_equal_torch_adamw_with_clipping():
    cfg = replace(CFG, optimizer=OptimizerConfig(max_grad_norm=0.1, weight_decay=0.1))
    engine, plain = TorchEngine(tiny_policy(), cfg), tiny_policy().model
    matrices = [param for param in plain.parameters() if param.ndim > 1]
    vectors = [param for param in plain.parameters() if param.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(3):
        engine.backward(nll(engine))
        result = engine.step(1e-2)
        logits = plain(input_ids=BATCH.input_ids_BT).logits[:, :-1]
        logps = torch.log_softmax(logits, -1).gather(2, BATCH.input_ids_BT[:, 1:, None]).squeeze(2)
        loss = -(logps * BATCH.mask_BT[:, 1:]).sum() / BATCH.mask_BT.sum()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        assert result.grad_norm == pytest.approx(float(norm), rel=1e-5)  # before clipping
        assert float(norm) > 0.1
    for name, tensor in plain.state_dict().items():
        assert torch.allclose(engine.full_state()[name], tensor, atol=2e-5), name


def test_a_loss_that_is_not_finite_stops():
    engine = TorchEngine(tiny_policy(), CFG)
    before = {name: tensor.clone() for name, tensor in engine.full_state().items()}
    engine.backward(nll(engine) * math.nan)
    with pytest.raises(StageFailed, match="is not finite"):
        engine.step(1e-2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.full_state().items())


def test_or_is_skipped_up_to_a_limit():
    engine = TorchEngine(tiny_policy(), replace(CFG, optimizer=OptimizerConfig(nonfinite="skip", max_skipped_steps=1)))
    before = {name: tensor.clone() for name, tensor in engine.full_state().items()}
    engine.backward(nll(engine) * math.inf)
    result = engine.step(1e-2)
    assert result.skipped and engine.optimizer.updates == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.full_state().items())
    engine.backward(nll(engine))
    assert not engine.step(1e-2).skipped and engine.optimizer.updates == 1
    engine.backward(nll(engine) * math.nan)
    with pytest.raises(StageFailed, match="2 steps were not finite"):
        engine.step(1e-2)


def test_a_loss_that_is_not_finite_is_refused_whatever_its_gradient():
    engine = TorchEngine(tiny_policy(), replace(CFG, optimizer=OptimizerConfig(nonfinite="skip")))
    before = {name: tensor.clone() for name, tensor in engine.full_state().items()}
    engine.backward(nll(engine))
    engine.backward(nll(engine) + math.inf)
    assert engine.step(1e-2).skipped and engine.optimizer.updates == 0 and engine.guard.skipped == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.full_state().items())
    engine.backward(nll(engine))
    assert not engine.step(1e-2).skipped and engine.optimizer.updates == 1


def test_a_step_with_nothing_in_it_is_an_error():
    with pytest.raises(RuntimeError, match="without backward"):
        TorchEngine(tiny_policy(), CFG).step(1e-2)


def test_out_of_memory_names_the_knob(monkeypatch):
    engine = TorchEngine(tiny_policy(), CFG)

    def explode(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(engine.scorer, "_score", explode)
    with pytest.raises(StageFailed, match="tokens_per_microbatch=16384: halve it"):
        nll(engine)


def test_gradient_checkpointing_changes_nothing():
    gradients = []
    for checkpointing in (False, True):
        cfg = replace(CFG, engine=EngineConfig(gradient_checkpointing=checkpointing))
        engine = TorchEngine(tiny_policy(), cfg, records=True)
        engine.backward(nll(engine))
        engine.step(1e-2)
        gradients.append(engine.gradients())
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-7), name


def test_bfloat16_has_float32_masters():
    """Twenty steps of 1e-5 move a master, though one of them is below what bfloat16 can express."""
    engine = TorchEngine(tiny_policy(dtype=torch.bfloat16), replace(CFG, dtype="bfloat16"))
    weight = engine.policy.model.get_input_embeddings().weight
    before = weight.detach().clone()
    for _ in range(20):
        engine.backward(nll(engine))
        engine.step(1e-5)
    assert weight.dtype == torch.bfloat16 and engine.masters[0].dtype == torch.float32
    moved = (engine.masters[0] - before.float()).abs().max()
    assert 5e-5 < float(moved) < 3e-4
    assert torch.equal(weight, engine.masters[0].bfloat16())


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def lora_engine(tmp_path, merge: bool):
    base = tiny_policy()
    save_policy(tmp_path / "base", dict(base.model.state_dict()), base)
    cfg = replace(CFG, lora=LoRAConfig(rank=2, merge=merge))
    context = context_in(tmp_path / "stage")
    engine = build_engine(load_policy(tmp_path / "base", "float32"), cfg, context)
    for _ in range(3):
        engine.backward(nll(engine))
        engine.step(1e-2)
    save_trained(engine, tmp_path / "base", cfg, context)
    return base, engine, context


@pytest.mark.parametrize("merge", [True, False])
def test_lora_leaves_as_merged_weights_or_as_an_adapter(tmp_path, merge):
    base, engine, context = lora_engine(tmp_path, merge)
    assert context.facts["model"]["adapter"] is not merge
    files = [path for path in (context.workdir / "model").iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask()}  # weights as readable as the rest
    assert context.facts["model"]["parameters"] == sum(param.numel() for param in base.model.parameters())
    loaded = load_policy(context.workdir / "model", "float32")  # the next stage gets whole weights either way
    with torch.no_grad():
        trained = engine.logps(BATCH).logps_BT
        again = TorchEngine(loaded, CFG).logps(BATCH).logps_BT
        untrained = TorchEngine(base, CFG).logps(BATCH).logps_BT
    assert torch.allclose(again, trained, atol=1e-4)
    assert not torch.allclose(again, untrained, atol=1e-2)
    names = set(base.model.state_dict())
    assert set(engine.full_state()) == names
    frozen = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(engine.full_state()[frozen], base.model.state_dict()[frozen])
