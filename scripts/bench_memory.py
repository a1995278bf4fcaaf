"""How much memory a rank does training need, and how much time do checkpoints take? Measured against the formulas.

    python scripts/bench_memory.py [--ranks 1 2 4] [--hidden 256] [--layers 6] [--steps 5]

Counts the bytes of all tensors that a rank really holds between backward and step, each memory once: weights,
gradients, optimizer states with float32 masters, and whatever else there is (buffers of communication; the batch).
The formulas are those of ZeRO (arXiv:1910.02054; float32: 4, 4 and 8 bytes a parameter, divided by the ranks from stage
3, 2 and 1 on). Padding to whole partitions comes on top. Then the time of a checkpoint against that of
`save_every_steps` training steps of the demo's size.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.config import EngineConfig
from pipeline.costs import states
from pipeline.tracking import Context
from stages.base_model.config import ModelConfig
from stages.base_model.scratch import new_policy
from stages.parts.policy.checkpoint import save_checkpoint
from stages.parts.policy.config import SupervisedStageConfig
from stages.parts.policy.examples import Example
from stages.parts.policy.supervised import supervised_step
from stages.parts.policy.train_engine import TrainEngine, build_engine

ENGINES = {"torch": EngineConfig()} | {f"zero{n}": EngineConfig("deepspeed", n) for n in (1, 2, 3)}
# Where DeepSpeed keeps gradients between backward and step.
GRADIENTS = ("averaged_gradients", "all_grad_tensors", "grad_partitions_flat_buffer")
STATES = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="training steps to time for the checkpoint's share")
    args = parser.parse_args()
    model = ModelConfig("scratch", hidden_size=args.hidden, layers=args.layers, intermediate_size=3 * args.hidden)
    head = f"{'weights':>15} {'gradients':>15} {'optimizer':>15} {'other':>6} {'ratio':>6}"
    print(f"{'engine':7} {'ranks':>5}  {head}   MiB a rank, measured (formula)")
    for name in args.engines:
        for ranks in args.ranks:
            measured, count = max_of_ranks(model, name, ranks)
            expected = formula(count, ENGINES[name].zero_stage, ranks)
            cells = [f"{m / 2**20:6.2f} ({e / 2**20:6.2f})" for m, e in zip(measured, expected)]
            share = sum(measured) / sum(expected)
            print(f"{name:7} {ranks:>5}  {' '.join(cells)} {measured[-1] / 2**20:6.2f} {share:6.3f}", flush=True)
    if args.steps:
        print(checkpoint_share(args.steps))


def formula(count: int, zero: int, ranks: int) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states a rank. DeepSpeed keeps a float32 master of its own part."""
    return states(count, zero, ranks, weights=4, gradients=4, optimizer=12 if zero else 8)


def max_of_ranks(model: ModelConfig, name: str, ranks: int) -> tuple[list[int], int]:
    """Bytes of the rank that holds most, of each sort; and the parameters of the model."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (model, name, ranks, folder, answers)
        workers = [spawn.Process(target=measure, args=(rank, *arguments)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        rows = [answers.get(timeout=600) for _ in workers]
        for worker in workers:
            worker.join()
    return [max(row[0][sort] for row in rows) for sort in range(4)], rows[0][1]


def measure(rank: int, model: ModelConfig, name: str, ranks: int, folder: str, answers: Any) -> None:
    """One rank: two steps, and a look between backward and step of the second."""
    torch.set_num_threads(1)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    policy = new_policy(model, seed=0)
    count = sum(param.numel() for param in policy.model.parameters())
    cfg = SupervisedStageConfig(kind="sft", engine=ENGINES[name], examples_per_step=4 * ranks)
    engine = build_engine(policy, cfg, Context("bench", Path(folder), 0, rank, ranks))
    looks: list[list[int]] = []
    step = engine.step
    engine.step = lambda rate: (looks.append(held(engine)), step(rate))[1]
    for number in range(2):
        supervised_step(engine, examples(4, 40, number), cfg, 1e-4)
    answers.put((looks[-1], count))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def held(engine: TrainEngine) -> list[int]:
    """Bytes of weights, gradients, optimizer states and all else that this rank holds now."""
    inner: Any = engine.optimizer
    update = getattr(engine, "update", inner)
    params = [getattr(param, "ds_tensor", param) for param in engine.policy.model.parameters()]
    weights = storages(params)
    masters = [param for group in update.param_groups for param in group["params"]]
    kept = [getattr(inner, name, []) for name in STATES]
    states = storages([*masters, *tensors(kept), *tensors(update.state)])
    grads = [p.grad for p in [*engine.policy.model.parameters(), *masters] if p.grad is not None]
    gradients = storages([*grads, *tensors([getattr(inner, name, None) for name in GRADIENTS])])
    states = {key: size for key, size in states.items() if key not in weights}
    known = {*weights, *gradients, *states}
    # Not isinstance, which asks an object for its __class__: some lazy modules answer with a warning.
    found = [one for one in gc.get_objects() if issubclass(type(one), Tensor) and one.device.type != "meta"]
    everything = storages(found)
    other = {key: size for key, size in everything.items() if key not in known}
    return [sum(group.values()) for group in (weights, gradients, states, other)]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def storages(found: Iterable[Tensor]) -> dict[int, int]:
    """address -> bytes: a view counts as what it looks into, and nothing counts twice."""
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found if one.numel()}


def examples(count: int, length: int, seed: int) -> list[Example]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 250, (count, length), generator=generator).tolist()
    return [Example(ids, [place >= length // 3 for place in range(length)]) for ids in rows]


def checkpoint_share(steps: int) -> str:
    """Time of a checkpoint against that of the training between two of them, at the size of the demo's SFT."""
    cfg = SupervisedStageConfig(kind="sft", examples_per_step=32)
    with tempfile.TemporaryDirectory() as folder:
        context = Context("bench", Path(folder), 0)
        engine = build_engine(new_policy(ModelConfig("scratch", layers=3, intermediate_size=256), 0), cfg, context)
        training, saving = [], []
        for step in range(steps + 1):
            began = time.perf_counter()
            supervised_step(engine, examples(32, 100, step), cfg, 1e-4)
            trained = time.perf_counter()
            save_checkpoint(context, step, engine, {})
            training.append(trained - began)
            saving.append(time.perf_counter() - trained)
    step_seconds, seconds = sorted(training[1:])[steps // 2], sorted(saving[1:])[steps // 2]
    share = seconds / (seconds + cfg.save_every_steps * step_seconds)
    return (
        f"checkpoint: {1000 * seconds:.0f} ms; {cfg.save_every_steps} SFT steps between two: "
        f"{cfg.save_every_steps * step_seconds:.1f} s; share {share:.1%}"
    )


if __name__ == "__main__":
    main()
