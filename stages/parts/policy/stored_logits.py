"""`dataset:logits` on disk: what a teacher said about the next token, for sequences that are found by their tokens.

    train.jsonl                   a row a sequence: key, file, first, positions
    logits-00000.safetensors      top_ids [N, K] int32, top_logps [N, K] float32, other_logps [N, temperatures] float32

Differs from a column beside the conversations: a sequence is known by its token ids and its mask, so that logits of
other data, another template or another cut are noticed instead of being laid beside the wrong tokens. Files hold a
fixed number of sequences, whatever the ranks, and are read a slice at a time.
N: supervised positions. K: tokens kept of each.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

INDEX = "train.jsonl"


@dataclass
class StoredRows:
    """Of one sequence, or of several one behind the other."""

    top_ids_NK: Tensor
    top_logps_NK: Tensor  # at temperature 1
    other_logps_NS: Tensor  # log of sum of p^(1/T) over all other tokens, for each of the S stored temperatures T

    def logps(self, temperature: float, place: int) -> Tensor:
        """[N, K + 1] at the temperature that stands at `place`: the kept tokens, then all others together."""
        tempered = torch.cat([self.top_logps_NK / temperature, self.other_logps_NS[:, place : place + 1]], dim=1)
        return tempered.log_softmax(dim=-1)


def sequence_key(ids: list[int], mask: list[bool]) -> str:
    """Of a sequence and of the positions that carry loss (nothing predicts the first token)."""
    digest = hashlib.blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16)
    digest.update(np.flatnonzero(mask[1:]).astype(np.int64).tobytes())
    return digest.hexdigest()


def write_shard(folder: Path, number: int, keys: list[str], rows: list[StoredRows]) -> list[dict[str, Any]]:
    """One file of sequences; returns their rows of the index."""
    name = f"logits-{number:05d}.safetensors"
    tensors = {
        "top_ids": torch.cat([row.top_ids_NK for row in rows]).int(),
        "top_logps": torch.cat([row.top_logps_NK for row in rows]).float(),
        "other_logps": torch.cat([row.other_logps_NS for row in rows]).float(),
    }
    save_file({key: tensor.cpu().contiguous() for key, tensor in tensors.items()}, folder / name)
    (folder / name).chmod(0o644)  # safetensors writes for its owner alone; a store may be a team's
    index, first = [], 0
    for key, row in zip(keys, rows, strict=True):
        index.append({"key": key, "file": name, "first": first, "positions": len(row.top_ids_NK)})
        first += len(row.top_ids_NK)
    return index


def write_index(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / INDEX).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


class StoredLogits:
    """A folder of them, opened for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / INDEX).read_text(encoding="utf-8").splitlines()
        self.index = {row["key"]: row for row in map(json.loads, lines)}
        self._open = cache(lambda name: safe_open(folder / name, framework="pt"))

    def __contains__(self, key: str) -> bool:
        return key in self.index

    def rows(self, key: str) -> StoredRows:
        """Raises KeyError for a sequence that the teacher has not read."""
        row = self.index[key]
        part = slice(row["first"], row["first"] + row["positions"])
        top_ids, top_logps, others = (
            self._open(row["file"]).get_slice(name)[part] for name in ("top_ids", "top_logps", "other_logps")
        )
        return StoredRows(top_ids.long(), top_logps, others)


def joined(rows: list[StoredRows]) -> StoredRows:
    return StoredRows(
        torch.cat([row.top_ids_NK for row in rows]),
        torch.cat([row.top_logps_NK for row in rows]),
        torch.cat([row.other_logps_NS for row in rows]),
    )
