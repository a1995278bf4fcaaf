"""Three ways to get the next token's logits from a causal LM, the fastest one that is exact for the model at hand.

`DenseDecoder` is the forward of the Llama family (Llama, Qwen2, Qwen3) written out over the model's own parameters:
a decode step of a small model is all Python in transformers' forward (8.5 ms for 4 layers whatever the batch), and a
tenth of it here. `CachedDecoder` is transformers' forward over our row memory, for any attention model.
`ReplayDecoder` runs the whole sequence at every token, for models whose state is not keys and values.
`fitting_decoder` chooses, and proves the choice on a few random tokens against the plain forward.

R rows, U unique prompts, Q tokens of a prompt, T columns of the row memory, H heads, K key-value heads, D head
dimension, C hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from stages.parts.rollouts.cache import RowCache, RowStore

DENSE_MODEL_TYPES = ("llama", "qwen2", "qwen3")
STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # the others change their frequencies with the length


class Decoder(Protocol):
    """Logits of rows that live in a row memory. Rows are left-aligned and numbered; 0..R-1 are in use."""

    def open(self, rows: int, columns: int) -> None:
        """Make room for `rows` sequences of `columns` tokens; what was there is forgotten."""
        ...

    def prefill(self, ids_UQ: Tensor, lengths_U: Tensor, source_N: Tensor, rows_N: Tensor) -> Tensor:
        """Run prompts (right-padded), give row rows_N[i] the state of prompt source_N[i]; logits [U, V] after each."""
        ...

    def decode(self, tokens_R: Tensor, positions_R: Tensor, width: int) -> Tensor:
        """Append one token to rows 0..R-1 at their positions (all below `width`); the next token's logits [R, V]."""
        ...

    def move(self, source_N: Tensor, target_N: Tensor, width: int) -> None:
        """Copy the state of rows to other rows."""
        ...

    def token_bytes(self) -> int:
        """Memory that one token of one row takes."""
        ...


class DenseDecoder:
    """Llama-like: pre-norm RMSNorm, rotary positions, grouped queries, SwiGLU; optional biases and q/k norms."""

    def __init__(self, model: PreTrainedModel):
        config = model.config
        self.model, self.inner, self.head = model, model.model, model.lm_head
        self.key_heads = config.num_key_value_heads
        self.queries_per_key = config.num_attention_heads // config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.scale = self.head_dim**-0.5
        self.has_head_norms = config.model_type == "qwen3"

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        config = model.config
        return (
            config.model_type in DENSE_MODEL_TYPES
            and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
            and config.rope_parameters.get("rope_type", "default") in STATIC_ROPE_TYPES
            and config.hidden_act == "silu"
        )

    def open(self, rows: int, columns: int) -> None:
        self.store = RowStore(rows, columns)
        positions_T = torch.arange(columns, device=self.model.device)
        weight = self.inner.embed_tokens.weight
        cos_1TD, sin_1TD = self.inner.rotary_emb(weight.new_empty(1), positions_T[None])
        half = self.head_dim // 2
        self.cos_TD = cos_1TD[0]
        # rotate_half(x) * sin == roll(x, D/2) * (-sin, sin): one operation less, no concatenation
        self.sin_TD = torch.cat([-sin_1TD[0, :, :half], sin_1TD[0, :, half:]], dim=-1)

    def prefill(self, ids_UQ: Tensor, lengths_U: Tensor, source_N: Tensor, rows_N: Tensor) -> Tensor:
        prompts, length = ids_UQ.shape
        cos, sin = self.cos_TD[:length, None], self.sin_TD[:length, None]  # [Q, 1, D] beside [U, Q, heads, D]
        x = self.inner.embed_tokens(ids_UQ)
        for index, layer in enumerate(self.inner.layers):
            query, key, value = (part.transpose(1, 2) for part in self._project(layer, x, cos, sin))
            self.store.write_prompts(index, key, value, source_N, rows_N)
            key, value = (part.repeat_interleave(self.queries_per_key, dim=1) for part in (key, value))
            # Padding stands on the right, so a causal mask alone keeps it from every real token.
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
            x = x + layer.self_attn.o_proj(mixed.transpose(1, 2).reshape(prompts, length, -1))
            x = x + self._mlp(layer, x)
        last_UC = x[torch.arange(prompts, device=x.device), lengths_U - 1]
        return self.head(_norm(last_UC, self.inner.norm))

    def decode(self, tokens_R: Tensor, positions_R: Tensor, width: int) -> Tensor:
        rows = tokens_R.shape[0]
        cos, sin = self.cos_TD[positions_R][:, None], self.sin_TD[positions_R][:, None]
        x = self.inner.embed_tokens(tokens_R)
        columns_T = torch.arange(width, device=x.device)
        hidden = (columns_T > positions_R[:, None])[:, None, None]
        mask = x.new_zeros(rows, 1, 1, width).masked_fill_(hidden, -torch.inf)
        for index, layer in enumerate(self.inner.layers):
            query, key, value = self._project(layer, x, cos, sin)
            keys, values = self.store.append(index, key, value, positions_R, width)
            # The queries of a key head stand where a sequence would: keys are read once, not repeated.
            query = query.view(rows, self.key_heads, self.queries_per_key, self.head_dim) * self.scale
            weights = torch.softmax(torch.matmul(query, keys.transpose(-1, -2)).add_(mask), dim=-1)
            x = x + layer.self_attn.o_proj(torch.matmul(weights, values).view(rows, -1))
            x = x + self._mlp(layer, x)
        return self.head(_norm(x, self.inner.norm))

    def move(self, source_N: Tensor, target_N: Tensor, width: int) -> None:
        self.store.move(source_N, target_N, width)

    def token_bytes(self) -> int:
        return _kv_bytes(self.model)

    def _project(self, layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., H, D], keys and values [..., K, D] of hidden states [..., C], rotated."""
        attention, shape = layer.self_attn, (*x.shape[:-1], -1, self.head_dim)
        normed = _norm(x, layer.input_layernorm)
        query, key = attention.q_proj(normed).view(shape), attention.k_proj(normed).view(shape)
        if self.has_head_norms:
            query, key = _norm(query, attention.q_norm), _norm(key, attention.k_norm)
        half = self.head_dim // 2
        query = torch.addcmul(query * cos, query.roll(half, -1), sin)
        key = torch.addcmul(key * cos, key.roll(half, -1), sin)
        return query, key, attention.v_proj(normed).view(shape)

    def _mlp(self, layer, x: Tensor) -> Tensor:
        normed = _norm(x, layer.post_attention_layernorm)
        return layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(normed)).mul_(layer.mlp.up_proj(normed)))


def _norm(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _kv_bytes(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize


class CachedDecoder:
    """transformers' own forward over `RowCache`: any model whose state is keys and values."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        config = model.config.get_text_config()
        self.layer_types = set(getattr(config, "layer_types", None) or ())
        self.window = getattr(config, "sliding_window", None)

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        types = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
        return not model._is_stateful and types <= {"full_attention", "sliding_attention"}

    def open(self, rows: int, columns: int) -> None:
        self.store = RowStore(rows, columns)

    def prefill(self, ids_UQ: Tensor, lengths_U: Tensor, source_N: Tensor, rows_N: Tensor) -> Tensor:
        positions_Q = torch.arange(ids_UQ.shape[1], device=ids_UQ.device)
        real_UQ = (positions_Q < lengths_U[:, None]).long()
        cache = DynamicCache()  # without a config no layer forgets what left its window
        logits_UQV = self.model(
            input_ids=ids_UQ, attention_mask=real_UQ, position_ids=positions_Q[None], past_key_values=cache
        ).logits
        for index, layer in enumerate(cache.layers):
            self.store.write_prompts(index, layer.keys, layer.values, source_N, rows_N)
        return logits_UQV[torch.arange(len(lengths_U), device=ids_UQ.device), lengths_U - 1]

    def decode(self, tokens_R: Tensor, positions_R: Tensor, width: int) -> Tensor:
        cache = RowCache(self.store, positions_R, width)
        logits_R1V = self.model(
            input_ids=tokens_R[:, None],
            position_ids=positions_R[:, None],
            attention_mask=self._masks(positions_R, width),
            past_key_values=cache,
        ).logits
        return logits_R1V[:, 0]

    def move(self, source_N: Tensor, target_N: Tensor, width: int) -> None:
        self.store.move(source_N, target_N, width)

    def token_bytes(self) -> int:
        return _kv_bytes(self.model)

    def _masks(self, positions_R: Tensor, width: int):
        """Additive masks [R, 1, 1, T]: one, or one a layer type where the model tells them apart."""
        columns_T = torch.arange(width, device=positions_R.device)
        full = columns_T > positions_R[:, None]
        masks = {"full_attention": full}
        if self.window is not None:
            masks["sliding_attention"] = full | (columns_T <= positions_R[:, None] - self.window)
        zeros = torch.zeros(len(positions_R), width, dtype=self.model.dtype, device=positions_R.device)
        lowest = torch.finfo(self.model.dtype).min
        added = {name: zeros.masked_fill(hidden, lowest)[:, None, None] for name, hidden in masks.items()}
        if "sliding_attention" in self.layer_types:
            return added
        windowed = self.window is not None and not self.layer_types
        return added["sliding_attention" if windowed else "full_attention"]


class ReplayDecoder:
    """No state but the tokens: every step runs the whole sequence. Slow, and right for any causal LM."""

    def __init__(self, model: PreTrainedModel):
        self.model = model

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        return True

    def open(self, rows: int, columns: int) -> None:
        self.ids_RT = torch.zeros(rows, columns, dtype=torch.long, device=self.model.device)

    def prefill(self, ids_UQ: Tensor, lengths_U: Tensor, source_N: Tensor, rows_N: Tensor) -> Tensor:
        self.ids_RT[rows_N, : ids_UQ.shape[1]] = ids_UQ[source_N]
        return self._last_logits(ids_UQ, lengths_U - 1)

    def decode(self, tokens_R: Tensor, positions_R: Tensor, width: int) -> Tensor:
        rows = len(tokens_R)
        self.ids_RT[torch.arange(rows, device=tokens_R.device), positions_R] = tokens_R
        return self._last_logits(self.ids_RT[:rows, :width], positions_R)

    def move(self, source_N: Tensor, target_N: Tensor, width: int) -> None:
        self.ids_RT[target_N, :width] = self.ids_RT[source_N, :width]

    def token_bytes(self) -> int:
        return 4 * self.model.config.vocab_size * self.model.dtype.itemsize  # logits of every token, and their like

    def _last_logits(self, ids_RT: Tensor, last_R: Tensor) -> Tensor:
        real_RT = (torch.arange(ids_RT.shape[1], device=ids_RT.device) <= last_R[:, None]).long()
        logits_RTV = self.model(input_ids=ids_RT, attention_mask=real_RT, use_cache=False).logits
        return logits_RTV[torch.arange(len(last_R), device=ids_RT.device), last_R]


def fitting_decoder(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that gives this model's own logits."""
    for kind in (DenseDecoder, CachedDecoder):
        if kind.fits(model) and _agrees(kind(model), model):
            return kind(model)
    return ReplayDecoder(model)


def _agrees(decoder: Decoder, model: PreTrainedModel) -> bool:
    """Two random rows of different lengths, a prefill and two decode steps, against the plain forward."""
    device = model.device
    lengths = (7, 4)
    ids_RT = torch.randint(0, min(model.config.vocab_size, 1000), (2, 9), generator=torch.Generator().manual_seed(0))
    ids_RT = ids_RT.to(device)
    rows_R, lengths_R = torch.arange(2, device=device), torch.tensor(lengths, device=device)
    with torch.inference_mode():
        decoder.open(2, 9)
        steps = [decoder.prefill(ids_RT[:, :7], lengths_R, rows_R, rows_R)]
        for positions_R in (lengths_R, lengths_R + 1):
            steps.append(decoder.decode(ids_RT[rows_R, positions_R], positions_R, 9))
        for row, length in enumerate(lengths):
            plain_TV = model(input_ids=ids_RT[row : row + 1, : length + 2], use_cache=False).logits[0].float()
            ours_TV = torch.stack([step[row].float() for step in steps])
            tolerance = 1e-4 if model.dtype == torch.float32 else 0.05
            scale = plain_TV.abs().max().clamp(min=1.0)
            if not (ours_TV - plain_TV[length - 1 :]).abs().max() <= tolerance * scale:
                return False
    return True
