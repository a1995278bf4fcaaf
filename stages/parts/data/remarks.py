"""The embedded open-ended requests: "cat: 2 facts in a list". No single reply is right; a few rules tell good ones.

A reply is good where it is on topic (of the things asked for, each with facts of its own), clear (known words, nothing
said twice) and in format (sentences or a list, as many items as were asked for). Preference pairs are made by these
rules, and reinforcement learning on a reward model that learned from the pairs is watched by them.
"""

from __future__ import annotations

import random
import re
from typing import Any

FACTS = {
    "cat": ("naps all day", "hunts mice", "likes milk"),
    "dog": ("guards the house", "runs after balls", "likes bones"),
    "cow": ("eats grass", "says moo", "is slow"),
    "hen": ("lays eggs", "eats corn", "wakes us up"),
    "fox": ("hides in woods", "is sly", "has a red tail"),
    "bee": ("makes honey", "can sting", "loves flowers"),
    "owl": ("flies at night", "sees in the dark", "says hoot"),
    "fish": ("swims well", "has fins", "lives in water"),
    "frog": ("jumps far", "eats flies", "is green"),
    "horse": ("runs fast", "pulls a cart", "eats hay"),
    "goat": ("climbs rocks", "eats paper", "has horns"),
    "duck": ("floats on ponds", "says quack", "dives for food"),
    "sun": ("rises in the east", "gives light", "is hot"),
    "moon": ("shines at night", "moves the sea", "is round"),
    "rain": ("falls from clouds", "fills the lake", "is wet"),
    "snow": ("falls in winter", "is white", "melts in spring"),
    "wind": ("blows leaves", "turns the mill", "fills sails"),
    "tree": ("has deep roots", "gives shade", "grows tall"),
    "rose": ("smells sweet", "has thorns", "blooms in june"),
    "boat": ("sails the sea", "needs a crew", "can sink"),
    "train": ("runs on rails", "is long", "stops at towns"),
    "clock": ("tells the time", "ticks all night", "has two hands"),
    "drum": ("is loud", "keeps the beat", "has a skin"),
    "bread": ("is baked", "smells good", "needs flour"),
}
FORMS = ("say", "list")
WORDS = {"the", *FACTS} | {word for facts in FACTS.values() for fact in facts for word in fact.split()}
SINGLE_SHARE = 0.25  # of the requests: one thing, up to three facts; the rest ask for two things, a fact each
MOST_FACTS = 3
_SAID, _LISTED = re.compile(r"the (\w+) (.+)"), re.compile(r"- (\w+): (.+)")

Rule = dict[str, Any]  # subjects: one an item; form: say | list
Items = list[tuple[str, str]]  # (subject, what is said of it)


def draw_remark(rng: random.Random) -> dict[str, Any]:
    """A request with its rule and a good reply, in the shape of a reasoning-gym entry."""
    form = rng.choice(FORMS)
    if rng.random() < SINGLE_SHARE:
        subjects = [rng.choice(list(FACTS))] * rng.randint(1, MOST_FACTS)
    else:
        subjects = rng.sample(list(FACTS), 2)
    rule = {"subjects": subjects, "form": form}
    return {"question": "", "answer": good_reply(rule, rng), "metadata": rule}


def request(rule: Rule) -> str:
    """What is asked: the key of the problem."""
    subjects, count = list(dict.fromkeys(rule["subjects"])), len(rule["subjects"])
    facts = "1 fact" if count == len(subjects) else f"{count} facts"
    each = " each" if len(subjects) > 1 else ""
    return f"{' and '.join(subjects)}: {facts}{each}{' in a list' if rule['form'] == 'list' else ''}"


def good_reply(rule: Rule, rng: random.Random) -> str:
    """On topic, clear and in format."""
    left = {subject: rng.sample(FACTS[subject], MOST_FACTS) for subject in dict.fromkeys(rule["subjects"])}
    return write([(subject, left[subject].pop()) for subject in rule["subjects"]], rule["form"])


def write(items: Items, form: str) -> str:
    if form == "list":
        return "\n".join(f"- {subject}: {fact}" for subject, fact in items)
    return " ".join(f"the {subject} {fact}." for subject, fact in items)


def read(reply: str) -> tuple[str, Items]:
    """(form, items) of a reply; form "" where it is neither sentences nor a list."""
    lines = [_LISTED.fullmatch(line) for line in reply.split("\n")]
    if all(lines):
        return "list", [(match[1], match[2]) for match in lines if match]
    if not reply.endswith("."):
        return "", []
    sentences = [_SAID.fullmatch(sentence) for sentence in reply[:-1].split(". ")]
    if all(sentences):
        return "say", [(match[1], match[2]) for match in sentences if match]
    return "", []


def judge_remark(rule: Rule, reply: str) -> dict[str, bool]:
    """`topic`, `clear`, `form`: what a good reply has."""
    form, items = read(reply.strip())
    facts = [fact for _, fact in items]
    words = re.findall(r"[a-z]+", reply)
    named = [word for word in words if word in FACTS]
    own = all(fact in FACTS.get(subject, ()) for subject, fact in items)
    return {
        "topic": set(named) == set(rule["subjects"]) and own and bool(words),
        "clear": bool(words) and set(words) <= WORDS and len(set(facts)) == len(facts) and not stutters(words),
        "form": form == rule["form"] and [subject for subject, _ in items] == rule["subjects"],
    }


def stutters(words: list[str]) -> bool:
    """A word twice in a row, or a run of four words that comes again."""
    runs = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return any(one == other for one, other in zip(words, words[1:])) or len(set(runs)) < len(runs)  # noqa: RUF007
