"""What ranks tell each other. Every function is a no-op for one rank, and a collective otherwise: all ranks call it.

Differs from the textbook in one point: numbers are summed in float64, so that a metric does not depend on the order
in which ranks are added.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from pipeline.artifacts import Interrupted
from pipeline.tracking import Context


def world() -> tuple[int, int]:
    """(rank, number of ranks)."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def all_sum(values: list[float]) -> list[float]:
    """Element-wise sum over ranks, in float64."""
    if world()[1] == 1:
        return [float(value) for value in values]
    total = torch.tensor(values, dtype=torch.float64, device=_device())
    dist.all_reduce(total)
    return total.tolist()


def all_max(value: int) -> int:
    """The largest value of any rank."""
    if world()[1] == 1:
        return value
    largest = torch.tensor(value, dtype=torch.int64, device=_device())
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def any_rank(flag: bool) -> bool:
    """True on every rank where it is true on one: how ranks agree to stop at the same step."""
    return bool(all_max(int(flag)))


def stop_if_asked(context: Context, doing: str) -> None:
    """For stages that keep nothing of a half-done piece of work. Raises Interrupted on every rank where one was asked
    to stop."""
    if any_rank(context.stop.is_set()):
        raise Interrupted(f"{doing} stopped; nothing is kept of it, it starts anew")


def gather_objects(rows: list[Any]) -> list[Any]:
    """The rows of all ranks, in order of rank, on every rank."""
    size = world()[1]
    if size == 1:
        return list(rows)
    gathered: list[list[Any]] = [[] for _ in range(size)]
    dist.all_gather_object(gathered, rows)
    return [row for part in gathered for row in part]


def barrier() -> None:
    if world()[1] > 1:
        dist.barrier()


def _device() -> torch.device:
    """Where collectives of the current backend live."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
