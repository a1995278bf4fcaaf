"""Training state on disk: float32 weights and Adam moments by parameter name, in safetensors shards.

Whole tensors under their own names, whatever engine and however many ranks wrote them: that is what lets a checkpoint
of two ZeRO-3 ranks go on in one plain process. Keys are `param/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.artifacts import StageFailed


def write(folder: Path, rank: int, tensors: dict[str, Tensor], updates: int, skipped: int) -> None:
    """One shard. Shards of several ranks hold different names; the counters are the same in all."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    counters = {"updates": str(updates), "skipped": str(skipped)}
    save_file(whole, folder / f"state-{rank}.safetensors", metadata=counters)


def read(folder: Path) -> tuple[dict[str, Tensor], int, int]:
    """All tensors of all shards, optimizer updates done, steps skipped."""
    tensors: dict[str, Tensor] = {}
    counters: dict[str, str] = {}
    for path in sorted(folder.glob("state-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            counters = file.metadata()
            tensors |= {name: file.get_tensor(name) for name in sorted(file.keys())}
    return tensors, int(counters["updates"]), int(counters["skipped"])


def nothing_left(tensors: dict[str, Tensor], folder: Path) -> None:
    if tensors:
        raise StageFailed(f"{folder} holds {len(tensors)} tensors of another model: {sorted(tensors)[:3]}")
