"""`problems`: build every suite, prove that its splits share no problem, write them."""

from __future__ import annotations

import functools

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context, Metrics
from stages.parts.data.conversations import save_conversations
from stages.parts.data.problems import SPLITS, save_problems
from stages.parts.data.sources import Suite, build_suite
from stages.parts.data.splits import check_disjoint, normalise
from stages.parts.policy.distributed import stop_if_asked
from stages.problems.config import ProblemsConfig, problem_facts


def run(cfg: ProblemsConfig, inputs: dict[str, Artifact], context: Context) -> Metrics:
    """Fill the three ports. Everything is a function of the configuration; ranks other than 0 have nothing to do."""
    between = functools.partial(stop_if_asked, context, "drawing problems")
    suites = {name: build_suite(name, data, between) for name, data in cfg.suites().items()}
    splits = {split: [problem for suite in suites.values() for problem in suite.splits[split]] for split in SPLITS}
    check_disjoint(splits)
    check_demonstrations(suites)
    for note in [note for suite in suites.values() for note in suite.notes]:
        context.note(note)
    others = [row for name, suite in suites.items() if name != "reasoning" for row in suite.demonstrations]
    if context.is_main:
        save_problems(context.output("problems"), splits)
        save_conversations(context.output("demonstrations"), suites["reasoning"].demonstrations)
        save_conversations(context.output("general"), others)
    counts = {name: {split: len(suite.splits[split]) for split in SPLITS} for name, suite in suites.items()}
    families = {name: sorted({problem.family for problem in suite.splits["train"]}) for name, suite in suites.items()}
    context.declare("problems", **problem_facts(cfg) | {"suites": counts}, families_found=families)
    context.declare("demonstrations", rows=len(suites["reasoning"].demonstrations))
    context.declare("general", rows=len(others))
    return {
        f"{name}/{split}_problems": float(count) for name, row in counts.items() for split, count in row.items()
    } | {f"{name}/demonstrations": float(len(suite.demonstrations)) for name, suite in suites.items()}


def check_demonstrations(suites: dict[str, Suite]) -> None:
    """Raises StageFailed where a demonstration shows a held-out question."""
    held_out = {
        normalise(problem.messages[-1]["content"])
        for suite in suites.values()
        for split in ("dev", "test")
        for problem in suite.splits[split]
    }
    for suite in suites.values():
        for row in suite.demonstrations:
            question = next(turn["content"] for turn in reversed(row["messages"]) if turn["role"] == "user")
            if normalise(question) in held_out:
                raise StageFailed(f"a demonstration shows the held-out question '{question}'")
