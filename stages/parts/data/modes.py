"""Thinking modes: which one a conversation asks for, and whether a response obeys. No torch.

Qwen3 (arXiv:2505.09388, section 4.3): `/think` or `/no_think` in a system or user turn, the last flag counts in a
conversation of several turns, and without one the model thinks. An answer without thinking still has the block, empty,
so that the form of a response tells its mode. A chat template switches too: `enable_thinking=False` puts the empty
block into the prompt.
"""

from __future__ import annotations

import re

from stages.parts.data.template import THINK_CLOSE, THINK_OPEN, Messages, split_thinking

THINK, NO_THINK = "/think", "/no_think"
EMPTY_BLOCK = THINK_OPEN + THINK_CLOSE  # as the content of a turn; a template gives it its own form (blank lines)
SWITCH = "enable_thinking"  # what templates with both modes are asked with
_FLAG = re.compile(r"(?<![\w/])/(?:no_)?think(?![\w/])")


def wants_thinking(messages: Messages) -> bool:
    """The mode of the next answer: the last flag in system and user turns; thinking where there is none.

    What an assistant said flags nothing.
    """
    flags = [flag for turn in messages if turn["role"] in ("system", "user") for flag in _FLAG.findall(turn["content"])]
    return not flags or flags[-1] == THINK


def is_flagged(messages: Messages) -> bool:
    return any(turn["role"] in ("system", "user") and _FLAG.search(turn["content"]) for turn in messages)


def obeys(text: str, thinking: bool) -> bool:
    """Whether a response is in the mode asked for: a block with reasoning in it, or an empty one before an answer."""
    reasoning, answer = split_thinking(text)
    return bool(reasoning) if thinking else reasoning == "" and bool(answer)


def expresses_modes(template: str | None) -> bool:
    """Whether a chat template can ask for an answer without thinking, as far as its text tells; a stage that teaches
    the modes proves it on the tokenizer (`template.require_modes`)."""
    return template is not None and SWITCH in template
