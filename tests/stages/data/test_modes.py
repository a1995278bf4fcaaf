"""Thinking modes: which flag counts, what obeys, and templates that express both modes, one, or neither."""

from __future__ import annotations

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data.fingerprints import hash_template
from stages.parts.data.modes import expresses_modes, is_flagged, obeys, wants_thinking
from stages.parts.data.template import render_conversation, render_prompt, require_modes
from stages.parts.data.tokenizer import CHAT_TEMPLATE, MODES_TEMPLATE, build_tokenizer, tokenizer_facts
from tests.stages.data.test_template import PLAIN_STYLE, QWEN_STYLE, TWO_TURNS, learned, tokenizer_with

# What Qwen3's own template does with thinking, without its tools.
QWEN3_MODES = (
    "{%- for m in messages -%}"
    "{%- if m.role == 'assistant' -%}"
    "{%- set reasoning = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    "{%- set answer = m.content.split('</think>')[-1].lstrip('\\n') -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if loop.last -%}{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- answer + '<|im_end|>\\n' -}}"
    "{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)
IM = ["<|im_start|>", "<|im_end|>"]


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Contents of user and assistant in turn."""
    roles = ["user", "assistant"] * len(contents)
    spoken = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return ([{"role": "system", "content": system}] if system is not None else []) + spoken


@pytest.mark.parametrize(
    ("messages", "thinking"),
    [
        (turns("1+1?"), True),  # thinking is the default
        (turns("1+1? /no_think"), False),
        (turns("/no_think 1+1?"), False),
        (turns("1+1?\n/no_think\nplease"), False),
        (turns("/no_think 1+1? /think"), True),  # the last one in a turn
        (turns("1+1?", system="be brief /no_think"), False),
        (turns("1+1? /think", system="/no_think"), True),  # the user speaks last
        (turns("1+1? /no_think", "2", "and 2+2?"), False),  # stays until the next flag
        (turns("1+1? /no_think", "2", "and 2+2? /think"), True),
        (turns("1+1?", "never /no_think", "and 2+2?"), True),  # an assistant flags nothing
        (turns("what is in /usr/no_think and in a/think?"), True),  # paths are no flags
        (turns("/thinking, /no_thinker"), True),
        (turns("1+1? (/no_think)."), False),
    ],
)
def test_the_last_flag_of_system_and_user_wins(messages, thinking):
    assert wants_thinking(messages) is thinking


def test_is_flagged():
    assert is_flagged(turns("x /think")) and is_flagged(turns("x", system="/no_think"))
    assert not is_flagged(turns("x", "/think", "y /thinker"))


@pytest.mark.parametrize(
    ("text", "in_thinking", "in_no_thinking"),
    [
        ("<think>1+1=2</think>\\boxed{2}", True, False),
        ("<think></think>\\boxed{2}", False, True),
        ("<think>\n\n</think>\n\n2", False, True),
        ("\\boxed{2}", False, False),  # without the block nothing tells the mode
        ("<think></think>", False, False),  # no answer
        ("<think>1+1", True, False),  # cut off, but it thinks
        ("</think>2", False, True),  # the prompt opened the block
    ],
)
def test_what_obeys(text, in_thinking, in_no_thinking):
    assert (obeys(text, True), obeys(text, False)) == (in_thinking, in_no_thinking)


def test_the_embedded_template_has_a_variant_with_both_modes():
    tokenizer = build_tokenizer()
    single = turns("2+2=?", "<think>two and two</think>\\boxed{4}")
    plain = render_conversation(tokenizer, single)
    assert tokenizer_facts()["template_hash"] == hash_template(CHAT_TEMPLATE)  # the default is what it was
    require_modes(tokenizer)
    assert tokenizer.chat_template == MODES_TEMPLATE
    assert render_conversation(tokenizer, single) == plain
    prompt, switched = (render_prompt(tokenizer, single[:1], thinking) for thinking in (True, False))
    assert tokenizer.decode(switched[len(prompt) :]) == "<think></think>"
    ids, mask = render_conversation(tokenizer, TWO_TURNS, last_only=True)
    assert learned(tokenizer, ids, mask) == [TWO_TURNS[3]["content"] + "<|end|>"]
    assert "two and two" not in tokenizer.decode(ids)  # of earlier turns the answers alone
    assert ids[: mask.index(True)] == render_prompt(tokenizer, TWO_TURNS[:3])


def test_a_template_like_qwen3s_passes_and_gives_the_block_its_own_form():
    tokenizer = tokenizer_with(QWEN3_MODES, IM, eos="<|im_end|>")
    require_modes(tokenizer)
    assert tokenizer.chat_template == QWEN3_MODES
    ids, mask = render_conversation(tokenizer, turns("2+2?", "<think></think>4"), last_only=True)
    assert learned(tokenizer, ids, mask) == ["<think>\n\n</think>\n\n4<|im_end|>"]
    assert render_prompt(tokenizer, turns("2+2?"), False) == ids[:-3]  # less 4, <|im_end|> and a line break


@pytest.mark.parametrize("template", [QWEN_STYLE, PLAIN_STYLE])
def test_a_template_without_the_switch_is_refused(template):
    assert not expresses_modes(template)
    with pytest.raises(StageFailed, match="enable_thinking"):
        require_modes(tokenizer_with(template, IM, eos="<|im_end|>"))


def test_a_template_that_drops_the_empty_block_is_refused():
    dropping = QWEN3_MODES.replace("{%- if loop.last -%}", "{%- if loop.last and reasoning -%}")
    with pytest.raises(StageFailed, match="rewrites an empty think block"):
        require_modes(tokenizer_with(dropping, IM, eos="<|im_end|>"))


def test_without_a_switch_the_block_is_put_behind_the_prompt():
    tokenizer = build_tokenizer()
    assert tokenizer.decode(render_prompt(tokenizer, turns("2+2?"), False)).endswith("<|assistant|><think></think>")
