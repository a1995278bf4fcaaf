"""Chat templates to ids and masks: the embedded one, Qwen3 style, Llama style, and one without any end token."""

from __future__ import annotations

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data.template import render_conversation, render_prompt, split_thinking
from stages.parts.data.tokenizer import build_tokenizer

# Strips the thinking of every assistant turn but the last, like Qwen3's; no generation markers.
QWEN_STYLE = (
    "{%- for m in messages -%}"
    "{%- set content = m.content -%}"
    "{%- if m.role == 'assistant' and '</think>' in content and not loop.last -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}"
)
# Emits its own BOS, trims contents; markers are around the content only, so the end token lies outside them.
LLAMA_STYLE = (
    "{{- bos_token -}}"
    "{%- for m in messages -%}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' -}}"
    "{%- if m.role == 'assistant' -%}{%- generation -%}{{- m.content | trim -}}{%- endgeneration -%}"
    "{%- else -%}{{- m.content | trim -}}{%- endif -%}"
    "{{- '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)
PLAIN_STYLE = (
    "{%- for m in messages -%}{{- m.role + ': ' + m.content + '\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'assistant: ' -}}{%- endif -%}"
)
TWO_TURNS = [
    {"role": "user", "content": "2+2=?"},
    {"role": "assistant", "content": "<think>\ntwo and two\n</think>\n\nIt is 4~"},
    {"role": "user", "content": "and 3+3?"},
    {"role": "assistant", "content": "<think>\nthree and three\n</think>\n\nIt is 60"},
]


def tokenizer_with(template: str, tokens: list[str], eos: str | None = None, bos: str | None = None):
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": tokens}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    if eos is not None:
        tokenizer.eos_token = eos
    if bos is not None:
        tokenizer.bos_token = bos
    return tokenizer


def learned(tokenizer, ids: list[int], mask: list[bool]) -> list[str]:
    """The texts of the masked runs."""
    runs, current = [], []
    for token, flag in [*zip(ids, mask, strict=True), (0, False)]:
        if flag:
            current.append(token)
        elif current:
            runs.append(tokenizer.decode(current))
            current = []
    return runs


def test_embedded_template_marks_both_turns_with_their_end_tokens():
    tokenizer = build_tokenizer()
    ids, mask = render_conversation(tokenizer, TWO_TURNS)
    assert learned(tokenizer, ids, mask) == [TWO_TURNS[1]["content"] + "<|end|>", TWO_TURNS[3]["content"] + "<|end|>"]
    assert ids[: mask.index(True)] == render_prompt(tokenizer, TWO_TURNS[:1])


def test_qwen_style_without_markers_masks_what_is_left_of_a_stripped_turn():
    tokenizer = tokenizer_with(QWEN_STYLE, ["<|im_start|>", "<|im_end|>"], eos="<|im_end|>")
    ids, mask = render_conversation(tokenizer, TWO_TURNS)
    assert learned(tokenizer, ids, mask) == [
        "It is 4~<|im_end|>",
        # the generation prompt opens the think block, so the response starts behind it
        "three and three\n</think>\n\nIt is 60<|im_end|>",
    ]


def test_llama_style_has_one_bos_and_learns_its_end_token():
    tokenizer = tokenizer_with(
        LLAMA_STYLE,
        ["<|bos|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        eos="<|eot_id|>",
        bos="<|bos|>",
    )
    ids, mask = render_conversation(tokenizer, TWO_TURNS)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert learned(tokenizer, ids, mask) == [
        TWO_TURNS[1]["content"] + "<|eot_id|>",
        TWO_TURNS[3]["content"] + "<|eot_id|>",
    ]
    assert render_prompt(tokenizer, TWO_TURNS[:1]).count(tokenizer.bos_token_id) == 1


def test_doubled_bos_is_reduced_to_one():
    tokenizer = tokenizer_with(
        "{{- bos_token + bos_token -}}" + QWEN_STYLE, ["<|bos|>", "<|im_start|>", "<|im_end|>"], bos="<|bos|>"
    )
    assert render_prompt(tokenizer, TWO_TURNS[:1]).count(tokenizer.bos_token_id) == 1
    ids, mask = render_conversation(tokenizer, TWO_TURNS)
    assert ids.count(tokenizer.bos_token_id) == 1 and len(ids) == len(mask)


def test_template_without_end_token_gets_one_behind_the_last_turn():
    tokenizer = tokenizer_with(PLAIN_STYLE, [])
    ids, mask = render_conversation(tokenizer, TWO_TURNS)
    assert ids[-1] == tokenizer.eos_token_id and mask[-1]
    assert learned(tokenizer, ids, mask)[0] == TWO_TURNS[1]["content"]


def test_conversation_without_assistant_is_an_error():
    for tokenizer in (build_tokenizer(), tokenizer_with(QWEN_STYLE, ["<|im_start|>", "<|im_end|>"])):
        with pytest.raises(StageFailed, match="nothing would be learned"):
            render_conversation(tokenizer, TWO_TURNS[:1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a b</think>\\boxed{1}", ("a b", "\\boxed{1}")),
        ("\\boxed{1}", (None, "\\boxed{1}")),
        ("<think>is it \\boxed{72}?", ("is it \\boxed{72}?", "")),
        ("a b</think> 7", ("a b", "7")),  # the prompt opened the block
        ("<think>a</think>b<think>c", ("c", "")),
        ("<think></think>4", ("", "4")),
    ],
)
def test_split_thinking(text, expected):
    assert split_thinking(text) == expected
