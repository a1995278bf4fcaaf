"""How people answer an exercise: at once, in careful steps, or skipping steps; some look back, some in Spanish.

The styles give reinforcement learning what real pretraining text gives it: careful steps are longer and mostly right,
skipped steps and instant answers are shorter and often wrong, and a policy can learn which of them pays.
"""

from __future__ import annotations

import random

from stages.parts.data.tasks import Exercise, near_miss

OPENINGS = {"en": "so ", "es": "pues "}
CHECKS = {"en": ("wait, ", " check: "), "es": ("espera, ", " reviso: ")}


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def reasoning(exercise: Exercise, careful: bool = True, language: str = "en") -> str:
    """The trace without tags. Not careful: only the last step, the ones before it done in the head."""
    steps = exercise.steps if careful else exercise.steps[-1:]
    return OPENINGS[language] + ", ".join(steps)


def reflecting(exercise: Exercise, rng: random.Random, language: str = "en") -> str:
    """A careful trace that looks back: it corrects a slip half the time, else does its last step again."""
    wait, check = CHECKS[language]
    steps = list(exercise.steps)
    if rng.random() < 0.5:
        return OPENINGS[language] + ", ".join(steps) + f".{check}{steps[-1]}"
    slip = rng.randrange(len(steps))
    steps[slip] = f"{spoil(steps[slip], rng)}, {wait}{steps[slip]}"
    return OPENINGS[language] + ", ".join(steps)


def spoil(step: str, rng: random.Random) -> str:
    """A step with one digit or letter wrong at its end."""
    last = step[-1]
    choices = "0123456789" if last.isdigit() else "abcdefghijklmnopqrstuvwxyz"
    return step[:-1] + rng.choice([other for other in choices if other != last])


def response(exercise: Exercise, trace: str | None, answer: str | None = None, tags: bool = True) -> str:
    """A whole response: the trace in a think block (or as plain text), then the boxed answer, or an open family's
    reply."""
    final = exercise.reply or boxed(exercise.answer if answer is None else answer)
    if trace is None:
        return final
    return f"<think>{trace}</think>{final}" if tags else f"{trace}. {final}"


def instant_answer(exercise: Exercise) -> str:
    """The answer given at once: right on one-step problems mostly, and less with every further step. Always the same
    for the same problem, so that a model cannot average the haste away."""
    from stages.parts.data.tasks import stable_fraction

    chance = {1: 0.85, 2: 0.6, 3: 0.4}.get(len(exercise.steps), 0.25)
    return exercise.answer if stable_fraction(f"instant/{exercise.key}") < chance else near_miss(exercise)


def messages(exercise: Exercise, text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": exercise.question}, {"role": "assistant", "content": text}]
