"""The tokenizer of the embedded models: one token a byte, so one an ASCII character. Lossless on any text.

Unlike a usual byte-level BPE it has no merges: every digit and letter is a token of its own, which is what lets half a
million parameters learn to add and to spell. `<think>` and `</think>` are single tokens but not special ones: they
belong to the text of a response and survive decoding with `skip_special_tokens`.
Everything here is deterministic, and its hashes are known without torch or transformers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from stages.parts.data.fingerprints import hash_template, hash_tokenizer_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|pad|>", "<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
THINK_TOKENS = ("<think>", "</think>")
BYTES = 256
NAME = "bytes"  # beside models of the hub, of which a plan knows the name of the tokenizer alone
VOCAB_SIZE = BYTES + len(SPECIAL_TOKENS) + len(THINK_TOKENS)  # 264
PAD_ID = BYTES
END_IDS = (BYTES + 1, BYTES + 2)  # <|endoftext|>, <|end|>

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}"
    "{{- message['content'] + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
# The same with both thinking modes: enable_thinking=False puts an empty block into the prompt, and of earlier turns the
# answers alone are kept, as in Qwen3's. A single turn is rendered alike by both. `modes: true` of a stage brings it in.
MODES_TEMPLATE = CHAT_TEMPLATE.replace(
    "{%- generation -%}{{- message['content'] + '<|end|>' -}}",
    "{%- set said = message['content'] if loop.last else message['content'].split('</think>')[-1] -%}"
    "{%- generation -%}{{- said + '<|end|>' -}}",
).replace(
    "{{- '<|assistant|>' -}}{%- endif -%}",
    "{{- '<|assistant|>' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think></think>' -}}{%- endif -%}"
    "{%- endif -%}",
)


def build_backend() -> Tokenizer:
    """The `tokenizers` object: id of a byte = its value, then the special tokens, then the think tags."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {_byte_symbol(byte): byte for byte in range(BYTES)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK_TOKENS])
    return tokenizer


def build_tokenizer(context_length: int = 512) -> PreTrainedTokenizerFast:
    """The same as a transformers tokenizer, with chat template; there is no BOS token."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_backend(),
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"],
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@cache
def tokenizer_facts() -> dict[str, object]:
    """The facts of a model that carries this tokenizer, as the plan declares them."""
    return {
        "vocab_size": VOCAB_SIZE,
        "tokenizer_hash": hash_tokenizer_json(build_backend().to_str()),
        "tokenizer": NAME,
        "template_hash": hash_template(CHAT_TEMPLATE),
        "thinking_modes": False,
        "end_tokens": sorted(END_IDS),
    }


def _byte_symbol(byte: int) -> str:
    """GPT-2's printable stand-in for a byte: itself where it is printable Latin-1, else from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(1 for other in range(byte) if other not in printable))
