"""Does the update depend on how it is computed? The same three steps over every split, compared by their gradients.

Differs from a loss curve put beside another: Adam and norm clipping hide a wrong scale (a gradient four times too large
changes three Adam steps by 6e-7), so gradients are recorded before clipping, after they were summed over micro-batches
and ranks, and the parameters are those of plain SGD. Adam's updates are compared beside them, more loosely.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.config import EngineConfig
from pipeline.tracking import Context, Metrics
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.model import Policy
from stages.parts.policy.train_engine import StepResult, TorchEngine, TrainEngine, build_engine

STEPS = 3
GRADIENT_TOLERANCE = 1e-5  # relative L2, float32
ADAM_TOLERANCE = 1e-3  # of the update
SGD_RATE = 0.1
ADAM_RATE = 1e-3


@dataclass(frozen=True)
class Split:
    """One way to compute the same update."""

    name: str
    ranks: int = 1
    engine: str = "torch"
    zero_stage: int = 0
    tokens_per_microbatch: int = 1_000_000
    packing: bool = False


@dataclass
class Task:
    """What is computed. Both functions are module-level ones: other ranks are other processes."""

    cfg: TrainedStageConfig
    make_policy: Callable[[TrainedStageConfig], Policy]  # the same weights every time, float32
    # One optimizer step (forward, backward, engine.step(rate)) on this rank's part of step i's data; its metrics hold
    # train/loss and train/grad_norm of the whole step.
    take_step: Callable[[TrainEngine, Any, int, float, int, int], Metrics]  # engine, cfg, i, rate, rank, ranks
    fault: bool = False  # plant one: gradients divided once more by the number of micro-batches


@dataclass
class Outcome:
    gradients: list[dict[str, Tensor]]
    losses: list[float]
    norms: list[float]
    sgd: dict[str, Tensor]  # parameters after three plain-SGD steps
    adam: dict[str, Tensor]  # what three Adam steps with the stage's own clipping added


@dataclass
class Difference:
    """Of one split from the reference; relative L2 norms, the largest of three steps."""

    split: Split
    gradient: float
    loss: float
    norm: float
    sgd: float
    adam: float

    @property
    def agrees(self) -> bool:
        return max(self.gradient, self.loss, self.norm, self.sgd) <= GRADIENT_TOLERANCE and self.adam <= ADAM_TOLERANCE


def all_splits(packing: bool, ranks: tuple[int, ...] = (1, 2), stages: tuple[int, ...] = (0, 1, 2, 3)) -> list[Split]:
    """The reference first, then micro-batch sizes, packing, ranks and ZeRO stages."""
    splits = [
        Split("one micro-batch"),
        Split("micro-batches of 256 tokens", tokens_per_microbatch=256),
        Split("a sequence a micro-batch", tokens_per_microbatch=1),
    ]
    if packing:
        splits.append(Split("packed", packing=True))
        splits.append(Split("packed, micro-batches of 256 tokens", packing=True, tokens_per_microbatch=256))
    for count in ranks:
        if count > 1:
            splits.append(Split(f"torch, {count} ranks", ranks=count, tokens_per_microbatch=256))
        splits += [
            Split(f"ZeRO-{stage}, {count} rank{'s' * (count > 1)}", count, "deepspeed", stage, 256) for stage in stages
        ]
    return splits


def compare(task: Task, splits: list[Split]) -> list[Difference]:
    """Run every split; how far each is from the first. Splits of several ranks share one start of processes."""
    outcomes: dict[str, Outcome] = {split.name: run_split(task, split) for split in splits if split.ranks == 1}
    for ranks in sorted({split.ranks for split in splits} - {1}):
        outcomes |= _in_processes(task, [split for split in splits if split.ranks == ranks], ranks)
    reference = outcomes[splits[0].name]
    return [_difference(split, outcomes[split.name], reference) for split in splits[1:]]


def run_split(task: Task, split: Split) -> Outcome:
    """Three recorded SGD steps without clipping, and three Adam steps with the stage's clipping."""
    outcome = Outcome([], [], [], {}, {})
    engine = _engine(task, split, sgd=True)
    for step in range(STEPS):
        metrics = _step(task, engine, split, step, SGD_RATE)
        outcome.gradients.append({name: tensor.cpu() for name, tensor in engine.gradients().items()})
        outcome.losses.append(metrics["train/loss"])
        outcome.norms.append(metrics["train/grad_norm"])
    outcome.sgd = _copied(engine.full_state())
    engine = _engine(task, split, sgd=False)
    before = _copied(engine.full_state())
    for step in range(STEPS):
        _step(task, engine, split, step, ADAM_RATE)
    outcome.adam = {name: tensor - before[name] for name, tensor in _copied(engine.full_state()).items()}
    return outcome


def _engine(task: Task, split: Split, sgd: bool) -> TrainEngine:
    cfg = _config(task, split, sgd)
    context = Context(stage="invariance", workdir=Path(), seed=0)
    engine = build_engine(task.make_policy(cfg), cfg, context, records=sgd)
    return DividedAgain(engine) if task.fault else engine


def _config(task: Task, split: Split, sgd: bool) -> Any:
    optimizer = task.cfg.optimizer
    optimizer = replace(optimizer, name="sgd", max_grad_norm=0.0, weight_decay=0.0) if sgd else optimizer
    cfg: Any = replace(
        task.cfg,
        engine=EngineConfig(kind=split.engine, zero_stage=split.zero_stage),
        tokens_per_microbatch=split.tokens_per_microbatch,
        optimizer=optimizer,
        dtype="float32",
    )
    return replace(cfg, packing=split.packing) if split.packing else cfg


def _step(task: Task, engine: TrainEngine, split: Split, step: int, rate: float) -> Metrics:
    rank = dist.get_rank() if split.ranks > 1 else 0
    return task.take_step(engine, _config(task, split, sgd=True), step, rate, rank, split.ranks)


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}


def _difference(split: Split, outcome: Outcome, reference: Outcome) -> Difference:
    pairs = zip(outcome.gradients, reference.gradients, strict=True)
    return Difference(
        split,
        gradient=max(relative(got, wanted) for got, wanted in pairs),
        loss=_relative_numbers(outcome.losses, reference.losses),
        norm=_relative_numbers(outcome.norms, reference.norms),
        sgd=relative(outcome.sgd, reference.sgd),
        adam=relative(outcome.adam, reference.adam),
    )


def relative(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """L2 norm of the difference over that of `wanted`, over all tensors together."""
    if set(got) != set(wanted):
        return float("inf")
    difference = sum(float((got[name].double() - wanted[name].double()).square().sum()) for name in wanted)
    size = sum(float(tensor.double().square().sum()) for tensor in wanted.values())
    return (difference / size) ** 0.5 if size else float(difference > 0)


def _relative_numbers(got: list[float], wanted: list[float]) -> float:
    scale = max(abs(number) for number in wanted) or 1.0
    return max(abs(a - b) for a, b in zip(got, wanted, strict=True)) / scale


def _in_processes(task: Task, splits: list[Split], ranks: int) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=_rank, args=(task, splits, rank, ranks, folder)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise RuntimeError(f"ranks ended with {[worker.exitcode for worker in workers]}; see the traceback above")
        return torch.load(Path(folder) / "outcomes.pt", weights_only=False)  # our own file of a second ago


def _rank(task: Task, splits: list[Split], rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    outcomes = {split.name: run_split(task, split) for split in splits}
    if rank == 0:
        torch.save(outcomes, Path(folder) / "outcomes.pt")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as the ranks of a run: threads of libraries may abort a process that is being taken down


class DividedAgain:
    """A planted fault, the most reported of the field: gradients divided once more by the number of micro-batches."""

    def __init__(self, engine: TrainEngine) -> None:
        if not isinstance(engine, TorchEngine):
            raise ValueError("the planted fault is for the torch engine")
        self.engine, self.backwards = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        self.engine.backward(loss)

    def step(self, learning_rate: float) -> StepResult:
        for master in self.engine.masters:
            master.grad.div_(self.backwards)
        self.backwards = 0
        return self.engine.step(learning_rate)
