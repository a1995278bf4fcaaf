"""Where thinking flags stand in a conversation: the ways that are trained on, and others that are held out.

A pattern says how many user turns a conversation has and where flags go; a flag of the *other* mode before the last one
tests that the last one wins. Obedience is measured on `HELD_OUT` alone: positions (a line of its own, two flags in one
turn, a system text) and turns (three of them) that no training conversation has. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.parts.data.modes import NO_THINK, THINK, Messages

SYSTEM = -1  # the turn of a flag that stands in the system prompt
SYSTEM_TEXT = "be kind"


@dataclass(frozen=True)
class Flag:
    turn: int  # of the user's, from 0; or SYSTEM
    position: str  # end | start | line | alone | text
    other: bool = False  # the flag of the mode that is not asked for in the end


@dataclass(frozen=True)
class Pattern:
    name: str
    turns: int = 1
    flags: tuple[Flag, ...] = ()  # in the order of the conversation; none: thinking, by default


PLAIN = Pattern("plain")
PLAIN_LATER = Pattern("plain_later", 2)
TRAINING = (
    Pattern("end", 1, (Flag(0, "end"),)),
    Pattern("start", 1, (Flag(0, "start"),)),
    Pattern("system", 1, (Flag(SYSTEM, "alone"),)),
    Pattern("system_overruled", 1, (Flag(SYSTEM, "alone", other=True), Flag(0, "end"))),
    Pattern("system_of_two", 2, (Flag(SYSTEM, "alone"),)),
    Pattern("first_of_two", 2, (Flag(0, "end"),)),
    Pattern("start_of_two", 2, (Flag(0, "start"),)),
    Pattern("second_of_two", 2, (Flag(1, "start"),)),
    Pattern("changed", 2, (Flag(0, "start", other=True), Flag(1, "end"))),
    Pattern("changed_from_end", 2, (Flag(0, "end", other=True), Flag(1, "start"))),
    Pattern("system_then_changed", 2, (Flag(SYSTEM, "alone", other=True), Flag(0, "end"))),
)
HELD_OUT = (
    Pattern("line", 1, (Flag(0, "line"),)),
    Pattern("twice", 1, (Flag(0, "start", other=True), Flag(0, "end"))),
    Pattern("system_text", 1, (Flag(SYSTEM, "text"),)),
    Pattern("first_of_three", 3, (Flag(0, "end"),)),
    Pattern("changed_in_three", 3, (Flag(0, "end", other=True), Flag(2, "end"))),
    Pattern("third_of_three", 3, (Flag(2, "start"),)),
)


def flagged(questions: list[str], answers: list[str], pattern: Pattern, thinking: bool) -> Messages:
    """The prompt that asks the last of `questions` in a mode; `answers` are those to the questions before it.

    Answers of earlier turns stand without their thinking, as templates show them.
    """
    texts = list(questions)
    system = None
    for flag in pattern.flags:
        word = THINK if thinking != flag.other else NO_THINK
        if flag.turn == SYSTEM:
            system = word if flag.position == "alone" else f"{SYSTEM_TEXT} {word}"
        else:
            texts[flag.turn] = place(texts[flag.turn], word, flag.position)
    messages = [] if system is None else [{"role": "system", "content": system}]
    for text, answer in zip(texts[:-1], answers, strict=True):
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": texts[-1]}]


def place(text: str, word: str, position: str) -> str:
    return {"end": f"{text} {word}", "start": f"{word} {text}", "line": f"{text}\n{word}"}[position]
