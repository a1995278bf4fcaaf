"""Preference pairs by our own rules: a good response beside one with a single fault, for open problems.

    helpfulness    of the answer after the thinking: repetitive, off_topic, out_of_format, garbled
    harmlessness   of the whole response: complied, harm_in_thinking, over_refused, garbled

Whether the worse one is worse is checked by the same rules that made it, so no pair teaches the reverse. Faults make
some responses longer and some shorter: length alone must not tell. A good remark about another subject is no fault of
this list: to tell one from what was asked for, words must be compared, and half a million parameters do not learn that
in the time of a demo (53% on held-out pairs, as by chance).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from stages.parts.data.pairs import HARMLESSNESS, HELPFULNESS, Pair
from stages.parts.data.remarks import FACTS, FORMS, Rule, good_reply, judge_remark, read, write
from stages.parts.data.requests import REFUSALS, draw_look_alike, is_refusal, reply_to, thought_on
from stages.parts.rollouts.types import Problem

TRIES = 50  # at a fault that came out as none


def pairs_of(problem: Problem, count: int, seed: int) -> list[Pair]:
    """At most `count` pairs of one problem, each with another fault; a pure function of problem and seed. One that
    is not an open one has none."""
    rng = random.Random(f"pairs/{seed}/{problem.id}")
    if problem.verifier == "remark":
        return _pairs(problem, HELPFULNESS, tuple(_REMARK_FAULTS), count, rng, _remark)
    if problem.verifier == "refusal" and "rule" in problem.metadata:
        return _pairs(problem, HARMLESSNESS, _REQUEST_FAULTS[problem.answer], count, rng, _request)
    return []


def _pairs(
    problem: Problem,
    axis: str,
    faults: tuple[str, ...],
    count: int,
    rng: random.Random,
    make: Callable[[Problem, str, random.Random], tuple[str, str]],
) -> list[Pair]:
    pairs = []
    for fault in rng.sample(faults, min(count, len(faults))):
        chosen, rejected = make(problem, fault, rng)
        pairs.append(Pair(problem.id, problem.messages, chosen, rejected, axis, fault))
    return pairs


# Open-ended requests


def _remark(problem: Problem, fault: str, rng: random.Random) -> tuple[str, str]:
    """(chosen, rejected); both think alike, since thinking is not what is judged."""
    rule = problem.metadata["rule"]
    chosen = good_reply(rule, rng)
    for _ in range(TRIES):
        rejected = _REMARK_FAULTS[fault](rule, good_reply(rule, rng), rng)
        if not all(judge_remark(rule, rejected).values()):
            thought = f"<think>so {' '.join(dict.fromkeys(rule['subjects']))}</think>"
            return thought + chosen, thought + rejected
    raise ValueError(f"{problem.id}: no reply with the fault {fault} in {TRIES} tries")


def _repeat(rule: Rule, reply: str, rng: random.Random) -> str:
    """An item said again in the place of the next, a word said again, or the end said over and over."""
    form, items = read(reply)
    way = rng.choice(("item", "word", "tail") if len(items) > 1 else ("word", "tail"))
    if way == "item":
        return write([items[0]] * len(items), form)
    if way == "tail":
        return write([*items, *[items[-1]] * rng.randint(1, 2)], form)
    words = reply.split(" ")
    at = rng.randrange(len(words))
    return " ".join([*words[:at], *[words[at]] * rng.randint(1, 3), *words[at:]])


def _answer_another(rule: Rule, reply: str, rng: random.Random) -> str:
    """What would be an answer to a request of another kind: a result, a refusal, a go-ahead."""
    way = rng.choice(("result", "word", "refusal", "help"))
    if way == "refusal":
        return rng.choice(REFUSALS)
    if way == "help":
        return reply_to(draw_look_alike(rng))
    words = [name for name in FACTS if name not in rule["subjects"]]
    return f"\\boxed{{{rng.randint(0, 99) if way == 'result' else rng.choice(words)}}}"


def _reform(rule: Rule, reply: str, rng: random.Random) -> str:
    """The other form, an item too few, or one too many."""
    form, items = read(reply)
    way = rng.choice(("form", "fewer", "more") if len(items) > 1 else ("form", "more"))
    if way == "form":
        return write(items, next(other for other in FORMS if other != form))
    if way == "fewer":
        return write(items[:-1], form)
    subject = items[-1][0]
    unsaid = [fact for fact in FACTS[subject] if (subject, fact) not in items]
    return write([*items, (subject, rng.choice(unsaid or ["is old"]))], form)


def _garble_remark(rule: Rule, reply: str, rng: random.Random) -> str:
    return garble(reply, rng)


_REMARK_FAULTS: dict[str, Callable[[Rule, str, random.Random], str]] = {
    "repetitive": _repeat,
    "off_topic": _answer_another,
    "out_of_format": _reform,
    "garbled": _garble_remark,
}


def garble(text: str, rng: random.Random) -> str:
    """A few letters of the text replaced."""
    places = [match.start() for match in re.finditer(r"[a-z]", text)]
    letters = list(text)
    for at in rng.sample(places, min(rng.randint(2, 5), len(places))):
        letters[at] = rng.choice([letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter != letters[at]])
    return "".join(letters)


# Requests to refuse, and look-alikes

_REQUEST_FAULTS = {"refuse": ("complied", "harm_in_thinking", "garbled"), "help": ("over_refused", "garbled")}


def _request(problem: Problem, fault: str, rng: random.Random) -> tuple[str, str]:
    """(chosen, rejected), thinking included: a plan for harm is harm, also where the answer then refuses."""
    wanted, entry = problem.answer, {"metadata": problem.metadata["rule"], "answer": problem.answer}
    other = "help" if wanted == "refuse" else "refuse"
    thought, refusal = thought_on(entry), rng.choice(REFUSALS)
    reply = refusal if wanted == "refuse" else reply_to(entry)
    chosen = f"<think>so {thought}</think>{reply}"
    if fault == "harm_in_thinking":
        return chosen, f"<think>so {thought_on(entry, 'help')}, {reply_to(entry, 'help')}</think>{refusal}"
    if fault == "garbled":
        for _ in range(TRIES):
            rejected = garble(reply, rng)
            if wanted == "help" or not is_refusal(rejected):
                return chosen, f"<think>so {thought}</think>{rejected}"
        raise ValueError(f"{problem.id}: every garbled refusal still reads as one")
    worse = rng.choice(REFUSALS) if other == "refuse" else reply_to(entry, other)
    return chosen, f"<think>so {thought_on(entry, other)}</think>{worse}"
