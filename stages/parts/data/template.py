"""Conversations to token ids and loss masks, through whatever chat template a tokenizer brings.

Differs from `apply_chat_template(return_assistant_tokens_mask=True)` in three ways, each a known failure of the field:
a template without `{% generation %}` markers still gets a mask (from what changes in the rendered text when a turn's
content changes), the end token of a turn is always inside the mask, and an all-zero mask is an error.
"""

from __future__ import annotations

import re
from typing import Any

from pipeline.artifacts import StageFailed
from stages.parts.data.tokenizer import CHAT_TEMPLATE, MODES_TEMPLATE

Messages = list[dict[str, str]]

_MARKER = re.compile(r"{%-?\s*generation\s*-?%}")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
NO_MODES_REMEDY = "take a model whose template knows enable_thinking, or add that to its chat_template.jinja (as Qwen3)"


def render_prompt(tokenizer: Any, messages: Messages, thinking: bool = True) -> list[int]:
    """Ids of the conversation with the generation prompt behind it; at most one BOS, as the template has it.

    thinking=False: with an empty think block behind that, in the template's form where it has one.
    """
    text = prompt_text(tokenizer, messages, thinking)
    return _one_bos(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])[0]


def prompt_text(tokenizer: Any, messages: Messages, thinking: bool = True) -> str:
    """What `render_prompt` tokenizes."""
    text = _render(tokenizer, messages, add_generation_prompt=True)
    if thinking:
        return text
    switched = _render(tokenizer, messages, add_generation_prompt=True, enable_thinking=False)
    return text + THINK_OPEN + THINK_CLOSE if switched == text else switched


def render_conversation(tokenizer: Any, messages: Messages, last_only: bool = False) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation and the mask of what the assistant says, end tokens included.

    Templates may rewrite earlier turns (Qwen3 strips their thinking): ids are always those of the finished
    conversation, and the mask covers what is left of each turn; last_only: of the last turn. Raises StageFailed where
    nothing would be learned.
    """
    ids, mask = _with_mask(tokenizer, messages)
    if last_only:
        mask = _last_run(mask)
    if not any(mask):
        raise StageFailed("the chat template marks no assistant token of a conversation: nothing would be learned")
    return _one_bos(tokenizer, ids, mask)


def _with_mask(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    if has_generation_markers(tokenizer):
        encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = list(encoded["input_ids"]), [bool(flag) for flag in encoded["assistant_masks"]]
        _include_end_tokens(tokenizer, ids, mask)
        return ids, mask
    return _mask_by_differences(tokenizer, messages)


def _last_run(mask: list[bool]) -> list[bool]:
    """Only the last stretch of ones."""
    end = max((position + 1 for position, flag in enumerate(mask) if flag), default=0)
    start = next((position + 1 for position in range(end - 1, -1, -1) if not mask[position]), 0)
    return [start <= position < end for position in range(len(mask))]


def has_generation_markers(tokenizer: Any) -> bool:
    """Whether the chat template itself says which tokens are the assistant's."""
    return _MARKER.search(tokenizer.chat_template or "") is not None


def split_thinking(text: str) -> tuple[str | None, str]:
    """A response's reasoning (None: it has none) and its answer part. Thinking that never ended leaves answer "".

    A template may have opened the think block in the prompt, so a lone `</think>` closes one too.
    """
    opened, closed = text.rfind(THINK_OPEN), text.rfind(THINK_CLOSE)
    if opened == -1 and closed == -1:
        return None, text
    if opened > closed:
        return text[opened + len(THINK_OPEN) :].strip(), ""
    before = text[:closed]
    reasoning = before.split(THINK_OPEN, 1)[1] if THINK_OPEN in before else before
    return reasoning.strip(), text[closed + len(THINK_CLOSE) :].strip()


def require_modes(tokenizer: Any) -> None:
    """See that the chat template expresses both thinking modes; the embedded one is replaced by its variant that does.

    Raises StageFailed where no prompt can ask for an answer without thinking, or such an answer is not kept as it is.
    """
    if tokenizer.chat_template == CHAT_TEMPLATE:
        tokenizer.chat_template = MODES_TEMPLATE
    question = [{"role": "user", "content": "2+2?"}]
    texts = [_render(tokenizer, question, add_generation_prompt=True, enable_thinking=on) for on in (True, False)]
    block = texts[1][len(texts[0]) :] if texts[1].startswith(texts[0]) else ""
    if not (block.strip().startswith(THINK_OPEN) and block.strip().endswith(THINK_CLOSE)):
        raise StageFailed(f"the chat template cannot express an answer without thinking: {NO_MODES_REMEDY}")
    answered = _render(tokenizer, [*question, {"role": "assistant", "content": THINK_OPEN + THINK_CLOSE + "4"}])
    if not answered.startswith(texts[1] + "4"):
        raise StageFailed(f"the chat template rewrites an empty think block: {NO_MODES_REMEDY}")


def _render(tokenizer: Any, messages: Messages, add_generation_prompt: bool = False, **switches: bool) -> str:
    return tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt, **switches
    )


def _mask_by_differences(tokenizer: Any, messages: Messages) -> tuple[list[int], list[bool]]:
    """The mask of a template without markers: character spans first, then tokens by their offsets."""
    text = _render(tokenizer, messages)
    spans = [_turn_span(tokenizer, messages, turn, text) for turn, m in enumerate(messages) if m["role"] == "assistant"]
    if not tokenizer.is_fast:
        raise StageFailed("the chat template has no generation markers and the tokenizer gives no offsets: add markers")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, mask = list(encoded["input_ids"]), []
    for begin, end in encoded["offset_mapping"]:
        mask.append(any(begin < stop and end > start for start, stop in spans))
    _include_end_tokens(tokenizer, ids, mask)
    if messages[-1]["role"] == "assistant" and not _ends_closed(tokenizer, ids, mask):
        # The template closes turns with plain text only: without an end token the model would never learn to stop.
        ids.append(tokenizer.eos_token_id)
        mask.append(True)
    return ids, mask


def _turn_span(tokenizer: Any, messages: Messages, turn: int, text: str) -> tuple[int, int]:
    """Characters of `text` that assistant turn `turn` produced.

    It starts where the generation prompt of the conversation before it ends, as far as the two texts agree (some
    prompts open a think block that a finished turn does not have). It ends where the text stops depending on the
    turn's content, seen by rendering it with two other contents, so that a shared last letter does not count.
    """
    start = _common_prefix(text, _render(tokenizer, messages[:turn], add_generation_prompt=True))
    tail = len(text)
    for other in ("0", "~"):
        changed = [*messages[:turn], {**messages[turn], "content": other}, *messages[turn + 1 :]]
        tail = min(tail, _common_prefix(text[::-1], _render(tokenizer, changed)[::-1]))
    return start, max(start, len(text) - tail)


def _include_end_tokens(tokenizer: Any, ids: list[int], mask: list[bool]) -> None:
    """Extend each masked run over the end token that follows it, in place."""
    ends = end_token_ids(tokenizer)
    for position in range(1, len(ids)):
        if mask[position - 1] and not mask[position] and ids[position] in ends and ids[position - 1] not in ends:
            mask[position] = True


def end_token_ids(tokenizer: Any) -> set[int]:
    """EOS and what chat templates use beside it to end a turn, where the vocabulary has them as special tokens."""
    names = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>")
    special = tokenizer.get_added_vocab()
    ends = {special[name] for name in names if name in special}
    return ends | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())


def _ends_closed(tokenizer: Any, ids: list[int], mask: list[bool]) -> bool:
    last = max((position for position, flag in enumerate(mask) if flag), default=None)
    return last is None or tokenizer.eos_token_id is None or ids[last] in end_token_ids(tokenizer)


def _one_bos(tokenizer: Any, ids: list[int], mask: list[bool] | None = None) -> tuple[list[int], list[bool]]:
    bos = tokenizer.bos_token_id
    flags = mask if mask is not None else [False] * len(ids)
    doubled = bos is not None and len(ids) > 1 and ids[0] == bos and ids[1] == bos
    return (ids[1:], flags[1:]) if doubled else (ids, flags)


def _common_prefix(left: str, right: str) -> int:
    limit = min(len(left), len(right))
    return next((index for index in range(limit) if left[index] != right[index]), limit)
