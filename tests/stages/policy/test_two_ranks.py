"""ZeRO on two real ranks: consolidated weights, checkpoints, a partitioned reference; read back by a plain process."""

from __future__ import annotations

import math
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from pipeline.config import EngineConfig
from stages.parts.policy.batch import pad_batch
from stages.parts.policy.checkpoint import load_checkpoint, save_checkpoint
from stages.parts.policy.config import OptimizerConfig, TrainedStageConfig
from stages.parts.policy.invariance import relative
from stages.parts.policy.model import save_policy
from stages.parts.policy.output import save_trained
from stages.parts.policy.reference import load_reference
from stages.parts.policy.train_engine import build_engine
from tests.stages.policy.tiny import CPU, context_in, ragged, tiny_policy

SKIP = OptimizerConfig(nonfinite="skip")
CFG = TrainedStageConfig(kind="x", seed=0, steps=3, dtype="float32", optimizer=SKIP)
STAGES = (1, 2, 3)


def batch_of(rank: int, ranks: int):
    sequences, masks = ragged(6)
    return pad_batch(sequences[rank::ranks], masks[rank::ranks], 0, CPU)


def steps(engine, count: int, rank: int = 0, ranks: int = 1) -> None:
    tokens = sum(sum(mask[1:]) for mask in ragged(6)[1])
    for _ in range(count):
        engine.backward(-engine.logps(batch_of(rank, ranks)).logps_BT.sum() / tokens)
        engine.step(1e-2)


def copied(engine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.full_state().items() if name != "lm_head.weight"}


def one_infinite_loss(engine, rank: int) -> None:
    """On one rank, with a finite gradient: no rank takes the step."""
    before = copied(engine)
    engine.backward(-engine.logps(batch_of(rank, 2)).logps_BT.sum() + (math.inf if rank == 0 else 0.0))
    assert engine.step(1e-2).skipped and engine.guard.skipped == 1
    after = copied(engine)
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    one_infinite_loss(build_engine(tiny_policy(), CFG, None), rank)
    for stage in STAGES:
        context = context_in(Path(folder) / f"zero{stage}", rank=rank, world_size=2)
        cfg = replace(CFG, engine=EngineConfig(kind="deepspeed", zero_stage=stage))
        engine = build_engine(tiny_policy(), cfg, context)
        steps(engine, 2, rank, 2)
        save_checkpoint(context, 2, engine, {})
        resumed = build_engine(tiny_policy(seed=1), cfg, context)
        load_checkpoint(context, resumed)
        reference = load_reference(Path(folder) / "base", cfg, context)
        before = reference.logps(batch_of(rank, 2)).logps_BT  # between two passes of the engine: trl#2840
        for each in (engine, resumed):
            steps(each, 1, rank, 2)
        straight, again = copied(engine), copied(resumed)
        assert all(torch.equal(straight[name], again[name]) for name in straight), f"ZeRO-{stage}: resume differs"
        reference.load_state(engine.full_state())
        after = reference.logps(batch_of(rank, 2)).logps_BT
        with torch.no_grad():
            assert torch.allclose(after, engine.logps(batch_of(rank, 2)).logps_BT, atol=1e-6)
        assert not torch.allclose(before, after, atol=1e-2)
        save_trained(engine, Path(folder) / "base", cfg, context)
        one_infinite_loss(engine, rank)
        if rank == 0:
            save_file({**straight, "reference": before}, Path(folder) / f"zero{stage}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def test_zero_on_two_ranks_and_one_plain_process_read_each_other(tmp_path):
    base = tiny_policy()
    save_policy(tmp_path / "base", dict(base.model.state_dict()), base)
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=one_rank, args=(rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    plain = build_engine(tiny_policy(), CFG, context_in(tmp_path / "plain"))
    with torch.no_grad():
        reference = plain.logps(batch_of(0, 2)).logps_BT
    steps(plain, 3)
    for stage in STAGES:
        expected = load_file(tmp_path / f"zero{stage}.safetensors")
        assert torch.allclose(expected.pop("reference"), reference, atol=1e-6)
        from_checkpoint = build_engine(tiny_policy(seed=2), CFG, None)
        load_checkpoint(context_in(tmp_path / f"zero{stage}"), from_checkpoint)
        steps(from_checkpoint, 1)
        assert relative(copied(plain), expected) < 1e-4, stage
        assert relative(copied(from_checkpoint), expected) < 1e-4, stage
        published = load_file(tmp_path / f"zero{stage}" / "model" / "model.safetensors")
        assert all(torch.equal(published[name], tensor) for name, tensor in expected.items())
