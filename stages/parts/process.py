"""What is process-wide in torch, set once a rank: threads, seeds, determinism, the process group.

The only place that touches it. Every rank gets the same seed: what must differ between ranks (the shard of data) is a
function of the rank, and sampling noise is keyed by problem, so that the result does not depend on the rank count.
"""

from __future__ import annotations

import os
import random

import numpy as np
import torch
import torch.distributed as dist

from pipeline.tracking import Context


def prepare(context: Context) -> None:
    """Called by the worker before the stage's `run`. Raises RuntimeError where the process group cannot form."""
    torch.set_num_threads(context.threads)
    random.seed(context.seed)
    np.random.seed(context.seed % 2**32)  # noqa: NPY002 (libraries draw from the legacy generator)
    torch.manual_seed(context.seed)
    # Warnings only: a few CUDA operations have no deterministic form, and a run must not die of them.
    torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import the compiler: 3 s
    torch.utils.deterministic.fill_uninitialized_memory = False  # ours are written before they are read
    if torch.cuda.is_available():
        torch.cuda.set_device(context.local_rank)
    if context.world_size > 1:
        join(context)


def join(context: Context) -> None:
    """Form the process group: over a file on one machine (no port to collide on), else over MASTER_ADDR."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rendezvous = os.environ.get("POSTTRAIN_RENDEZVOUS")
    method = f"file://{rendezvous}" if rendezvous else "env://"
    dist.init_process_group(backend, init_method=method, rank=context.rank, world_size=context.world_size)


def finish(context: Context) -> None:
    """Called after `run` returned on this rank: wait for the others, then leave the group."""
    if context.world_size > 1 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
