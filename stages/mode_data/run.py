"""`mode_data`: exchanges of both modes are put together to conversations and prompts with flags. No model is needed.

Everything is a function of the configuration and the inputs; ranks other than 0 have nothing to do.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.mode_data.config import FACTS, ModeDataConfig, with_more
from stages.parts.data.conversations import load_conversations, save_conversations
from stages.parts.data.flags import PLAIN, PLAIN_LATER, TRAINING, Pattern, flagged
from stages.parts.data.modes import EMPTY_BLOCK, obeys, wants_thinking
from stages.parts.data.problems import SPLITS, load_problems, save_problems
from stages.parts.data.solutions import boxed
from stages.parts.data.sources import build_suite
from stages.parts.data.splits import check_disjoint
from stages.parts.data.template import Messages, split_thinking
from stages.parts.policy.distributed import stop_if_asked
from stages.parts.rollouts.types import Problem

LATER = 0.25  # of unflagged conversations: of two turns


@dataclass(frozen=True)
class Exchange:
    """A question and an answer to it: thinking and all, or the answer alone."""

    question: str
    answer: str
    problem_id: str
    suite: str


Pools = dict[str, list[Exchange]]  # suite -> exchanges


def run(cfg: ModeDataConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    problems = {split: load_problems(inputs["problems"].path, split) for split in SPLITS}
    rows = [row for port in ("thinking", "general") if port in inputs for row in load_conversations(inputs[port].path)]
    between = functools.partial(stop_if_asked, context, "drawing problems")
    more = {name: build_suite(name, data, between) for name, data in cfg.more.items()}
    for added in more.values():
        problems = {split: [*found, *added.splits[split]] for split, found in problems.items()}
        rows += added.demonstrations
        for note in added.notes:
            context.note(note)
    check_disjoint(problems)
    thinking = thinking_pools(rows)
    direct = direct_pools(problems["train"], rows)
    for suite in cfg.suites:
        if not thinking.get(suite) or not direct.get(suite):
            mode = "thinking" if not thinking.get(suite) else "answers without thinking"
            raise StageFailed(f"suite '{suite}' has no {mode}: wire conversations of it, or leave it out of suites")
    conversations = [conversation(number, cfg, thinking, direct) for number in range(cfg.conversations)]
    asked = {split: [flagged_problem(problem, cfg, direct) for problem in found] for split, found in problems.items()}
    if context.is_main:
        save_conversations(context.output("data"), conversations)
        save_problems(context.output("problems"), asked)
    context.declare("data", rows=len(conversations))
    known = {name: inputs["problems"].facts[name] for name in FACTS if name in inputs["problems"].facts}
    sizes = {name: {split: len(added.splits[split]) for split in SPLITS} for name, added in more.items()}
    context.declare("problems", **with_more(cfg, known, sizes))
    context.samples(0, [shown(row) for row in conversations[:8]])
    metrics = counts(conversations, asked["train"])
    context.log(0, metrics)
    return metrics


def thinking_pools(rows: list[dict[str, Any]]) -> Pools:
    """Responses that think, to a single user turn."""
    pools: Pools = {}
    for row in rows:
        turns = row["messages"]
        if len(turns) == 2 and obeys(turns[-1]["content"], thinking=True):
            exchange = Exchange(turns[0]["content"], turns[1]["content"], row["problem_id"], row["suite"])
            pools.setdefault(row["suite"], []).append(exchange)
    return pools


def direct_pools(problems: list[Problem], rows: list[dict[str, Any]]) -> Pools:
    """Answers without thinking: the boxed gold where a box is judged, else what a demonstration says in the end."""
    shown_answers = {row["problem_id"]: split_thinking(row["messages"][-1]["content"])[1] for row in rows}
    boxes = {row["suite"] for row in rows if "\\boxed" in shown_answers[row["problem_id"]]}
    pools: Pools = {}
    for problem in problems:
        if len(problem.messages) != 1:
            continue
        answer = boxed(problem.answer) if problem.suite in boxes else shown_answers.get(problem.id)
        if answer:
            exchange = Exchange(problem.messages[0]["content"], answer, problem.id, problem.suite)
            pools.setdefault(problem.suite, []).append(exchange)
    return pools


def conversation(number: int, cfg: ModeDataConfig, thinking: Pools, direct: Pools) -> dict[str, Any]:
    """Row `number` of the data: a function of the seed and the number."""
    rng = random.Random(f"{cfg.seed}/mode_data/{number}")
    suite = rng.choices(list(cfg.suites), list(cfg.suites.values()))[0]
    thinks = rng.random() >= cfg.no_thinking_fraction
    exchange = rng.choice((thinking if thinks else direct)[suite])
    pattern = _pattern(rng, thinks, cfg)
    prompt = _prompt(exchange.question, pattern, thinks, _before(suite, direct), rng)
    said = exchange.answer if thinks else EMPTY_BLOCK + exchange.answer
    row = {
        "messages": [*prompt, {"role": "assistant", "content": said}],
        "problem_id": exchange.problem_id,
        "suite": suite,
    }
    return row | ({"loss": "last"} if pattern.turns > 1 else {})


def flagged_problem(problem: Problem, cfg: ModeDataConfig, direct: Pools) -> Problem:
    """The problem asked in one of the modes; one that has several turns already, or no neighbours, stays as it is."""
    if len(problem.messages) != 1 or problem.suite not in direct:
        return problem
    rng = random.Random(f"{cfg.seed}/mode_data/{problem.id}")
    thinks = rng.random() >= cfg.no_thinking_fraction
    pattern = _pattern(rng, thinks, cfg)
    question = problem.messages[0]["content"]
    return replace(problem, messages=_prompt(question, pattern, thinks, _before(problem.suite, direct), rng))


def _before(suite: str, direct: Pools) -> list[list[Exchange]]:
    """Where earlier turns come from: half of them from the suite itself, so that questions differ in length as well."""
    others = [pool for name, pool in direct.items() if name != suite]
    return [direct[suite]] * max(1, len(others)) + others


def _pattern(rng: random.Random, thinks: bool, cfg: ModeDataConfig) -> Pattern:
    if thinks and rng.random() < cfg.unflagged_fraction:
        return PLAIN_LATER if rng.random() < LATER else PLAIN
    return rng.choice(TRAINING)


def _prompt(question: str, pattern: Pattern, thinks: bool, pools: list[list[Exchange]], rng: random.Random) -> Messages:
    earlier = [rng.choice(rng.choice(pools)) for _ in range(pattern.turns - 1)]
    return flagged([*(one.question for one in earlier), question], [one.answer for one in earlier], pattern, thinks)


def counts(rows: list[dict[str, Any]], asked: list[Problem]) -> Metrics:
    thinking = [wants_thinking(row["messages"][:-1]) for row in rows]
    suites = Counter(row["suite"] for row in rows)
    return {
        "data/conversations": float(len(rows)),
        "data/thinking": sum(thinking) / len(rows),
        "data/several_turns": sum("loss" in row for row in rows) / len(rows),
        "data/problems_thinking": sum(wants_thinking(problem.messages) for problem in asked) / len(asked),
        **{f"data/{suite}": float(count) for suite, count in sorted(suites.items())},
    }


def shown(row: dict[str, Any]) -> dict[str, Any]:
    prompt = "\n".join(f"[{turn['role']}] {turn['content']}" for turn in row["messages"][:-1])
    return {"prompt": prompt, "response": row["messages"][-1]["content"], "suite": row["suite"]}
