"""The KV memory of a rollout: one preallocated tensor a layer, rows that are moved and reused, never concatenated.

A row is left-aligned: its token number t lies in column t, whatever the other rows do. So a freed row takes a new
prompt while the others go on, and padding is known by position alone.

R rows, K key-value heads, T columns (tokens), D head dimension, U unique prompts, Q tokens of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


@dataclass
class RowStore:
    """Keys and values of every layer, [R, K, T, D] each; allocated at a layer's first prompt."""

    rows: int
    columns: int
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def write_prompts(self, layer: int, keys_UKQD: Tensor, values_UKQD: Tensor, source_N: Tensor, rows_N: Tensor):
        """Row rows_N[i] gets the keys and values of prompt source_N[i]: a prompt is computed once for its group."""
        if layer == len(self.keys):
            # Zeros, not empty: a masked column has weight 0, and 0 times NaN is NaN.
            for store, new in ((self.keys, keys_UKQD), (self.values, values_UKQD)):
                store.append(new.new_zeros(self.rows, new.shape[1], self.columns, new.shape[3]))
        width = keys_UKQD.shape[2]
        self.keys[layer][rows_N, :, :width] = keys_UKQD[source_N]
        self.values[layer][rows_N, :, :width] = values_UKQD[source_N]

    def append(self, layer: int, keys_RKD: Tensor, values_RKD: Tensor, positions_R: Tensor, width: int):
        """Write one token for rows 0..R-1; the keys and values of columns 0..width-1, as views [R, K, width, D]."""
        rows = keys_RKD.shape[0]
        keys, values = self.keys[layer][:rows], self.values[layer][:rows]
        index_R = torch.arange(rows, device=positions_R.device)
        keys[index_R, :, positions_R] = keys_RKD
        values[index_R, :, positions_R] = values_RKD
        return keys[:, :, :width], values[:, :, :width]

    def move(self, source_N: Tensor, target_N: Tensor, width: int) -> None:
        for store in (*self.keys, *self.values):
            store[target_N, :, :width] = store[source_N, :, :width]


class RowLayer(CacheLayerMixin):
    """One layer of `RowCache` in the terms of transformers: update() writes this step's token into each row."""

    is_sliding = False

    def __init__(self, cache: RowCache, layer: int):
        super().__init__()
        self.cache, self.layer = cache, layer
        self.is_initialized = True

    def lazy_initialization(self, *args, **kwargs) -> None:
        raise NotImplementedError("rows are allocated when the first prompt is written")

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        here = self.cache
        return here.store.append(self.layer, key_states[:, :, 0], value_states[:, :, 0], here.positions_R, here.width)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width, 0

    def get_seq_length(self) -> int:
        return self.cache.width - 1

    def get_max_length(self) -> int:
        return self.cache.store.columns


class RowCache(Cache):
    """`RowStore` as a transformers Cache, for one decode step at rows 0..R-1."""

    def __init__(self, store: RowStore, positions_R: Tensor, width: int):
        self.store, self.positions_R, self.width = store, positions_R, width
        super().__init__(layers=[RowLayer(self, layer) for layer in range(len(store.keys))])
