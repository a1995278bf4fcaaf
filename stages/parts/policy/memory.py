"""How much memory a training stage needed: measured at its peak, and computed for what must stay.

On a GPU the peak is the allocator's own. On a CPU it is the growth of the resident set over the stage, which holds
activations, buffers that an allocator has not given back, and whatever libraries load late: it says how large a machine
must be, and says little about a method where the model is small. `state_bytes` counts weights, gradients and optimizer
states by the formulas of ZeRO (arXiv:1910.02054), without noise and without activations.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

from pipeline.config import EngineConfig
from pipeline.tracking import Metrics
from stages.parts.policy.distributed import all_max, world

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """From here to `metrics`."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            if os.access(CLEAR_REFS, os.W_OK):
                CLEAR_REFS.write_text("5")  # forget the peak of what ran in this process before
            self.before = _resident("VmRSS")

    def metrics(self, *models: tuple[torch.nn.Module, EngineConfig, bool]) -> Metrics:
        """`models`: each with its engine, and whether it is trained. Collective: the largest of any rank."""
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _resident("VmHWM")
        return {
            "memory/peak_bytes": float(all_max(peak - self.before)),
            "memory/state_bytes": float(sum(state_bytes(*model, ranks=world()[1]) for model in models)),
        }


def state_bytes(model: torch.nn.Module, engine: EngineConfig, trained: bool, ranks: int) -> int:
    """Bytes of weights, and where the model is trained of gradients, Adam's moments and float32 masters, a rank."""
    zero = engine.zero_stage if engine.kind == "deepspeed" else 0
    weights = gradients = states = 0
    for param in model.parameters():
        count, size = getattr(param, "ds_numel", param.numel()), param.element_size()
        weights += count * size
        if trained and param.requires_grad:
            gradients += count * 4
            states += count * (8 if size == 4 else 12)
    return (
        weights // (ranks if zero == 3 else 1)
        + gradients // (ranks if zero >= 2 else 1)
        + states // (ranks if zero >= 1 else 1)
    )


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) in bytes. Where there is no /proc the peak of the process stands for both."""
    if not STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
