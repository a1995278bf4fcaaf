"""Both thinking modes and thinking budgets on held-out problems: does a model obey, and what is its answer worth then?

    thinking, no_thinking   asked for by flags, in positions and turns that no training conversation has (HELD_OUT of
                            flags.py); right counts only in the mode that was asked for
    at_once                 no flag: the prompt ends with an empty think block, whoever was trained on what
    budget_N                no flag: thinking is cut short after N tokens (arXiv:2505.09388, section 4.3), with the
                            noise of the plain evaluation, so that responses are the same up to the cut

A row a response: setting, pattern, suite, problem_id, sample_index, right, obeyed, reasoned (outside the block),
judged, tokens, forced. A closed block alone keeps nobody from reasoning behind it: `direct` is right without that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stages.evaluate.config import EvaluateConfig
from stages.parts.data.flags import HELD_OUT, Pattern, flagged
from stages.parts.data.modes import obeys
from stages.parts.data.solutions import boxed
from stages.parts.data.tasks import stable_int
from stages.parts.data.template import Messages, render_prompt, split_thinking
from stages.parts.evaluation.behaviour import is_reasoned
from stages.parts.policy.model import Policy
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import RolloutEngine
from stages.parts.rollouts.requests import answer_problems
from stages.parts.rollouts.types import Problem
from stages.parts.verifiers.config import RewardConfig
from stages.parts.verifiers.table import WHOLE_ANSWER

Row = dict[str, Any]
MODES = {"thinking": True, "no_thinking": False}
DIRECT = ("no_thinking", "at_once")


@dataclass(frozen=True)
class Asker:
    """What every setting is asked with."""

    cfg: EvaluateConfig
    engine: RolloutEngine
    policy: Policy
    shard: tuple[int, int]
    between: Callable[[int], None]

    def has_room(self, messages: Messages) -> bool:
        """Whether a response fits behind a prompt into the model's context."""
        limit = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        prompt = render_prompt(self.policy.tokenizer, messages)
        return limit is None or len(prompt) + self.cfg.max_response_tokens <= limit

    def rows(
        self,
        setting: str,
        problems: list[Problem],
        sampling: SamplingConfig,
        noise: str,
        thinking: bool = True,
        mode: bool | None = None,
    ) -> list[Row]:
        """This rank's rows. thinking=False closes the block in the prompt; `mode` is what flags ask for."""
        cfg = self.cfg
        groups = answer_problems(
            self.engine, self.policy, problems, cfg.mode_samples, sampling, (cfg.seed, noise, 0),
            RewardConfig(require_box=cfg.require_box), self.shard, self.between, thinking,
        )  # fmt: skip
        found = []
        for group in groups:
            for rollout in group.rollouts:
                assert rollout.score is not None
                obeyed = mode is None or obeys(rollout.text, mode)
                right = rollout.score.parts.get("accuracy", 0.0) >= 1.0
                found.append({
                    "setting": setting,
                    "pattern": group.problem.metadata["pattern"] if mode is not None else "",
                    "suite": group.problem.suite,
                    "problem_id": group.problem.id,
                    "sample_index": rollout.sample_index,
                    "right": right and obeyed,
                    "obeyed": obeyed,
                    "reasoned": is_reasoned(split_thinking(rollout.text)[1] if mode is False else rollout.text),
                    "judged": rollout.score.value is not None,
                    "tokens": len(rollout.response_ids),
                    "forced": bool(rollout.forced),
                })  # fmt: skip
        return found


def mode_rows(asker: Asker, problems: list[Problem]) -> list[Row]:
    cfg = asker.cfg
    plain = SamplingConfig(cfg.temperature, cfg.top_p, 0, cfg.max_response_tokens)
    rows: list[Row] = []
    if cfg.modes:
        for setting, thinking in MODES.items():
            asked = ask(problems, thinking, asker.has_room)
            rows += asker.rows(setting, asked, plain, f"evaluate/{setting}", mode=thinking)
        rows += asker.rows("at_once", problems, plain, "evaluate/at_once", thinking=False)
    for budget in cfg.budgets:
        budgeted = replace(plain, thinking_budget=budget, stop_text=cfg.stop_text)
        rows += asker.rows(f"budget_{budget}", problems, budgeted, "evaluate")
    return rows


def pattern_of(problem: Problem) -> Pattern:
    """One of the held-out patterns, always the same for a problem."""
    return HELD_OUT[stable_int(f"pattern/{problem.id}") % len(HELD_OUT)]


def ask(problems: list[Problem], thinking: bool, has_room: Callable[[Messages], bool]) -> list[Problem]:
    """The problems with flags; earlier turns are other problems of their suite, answered right. Where there is no room
    for several turns it is one."""
    asked = []
    for place, problem in enumerate(problems):
        pattern = pattern_of(problem)
        others = [one for one in problems if one.suite == problem.suite and one.id != problem.id] or [problem]
        earlier = [others[(place + step) % len(others)] for step in range(pattern.turns - 1)]
        questions = [one.messages[-1]["content"] for one in (*earlier, problem)]
        messages = flagged(questions, [said(one) for one in earlier], pattern, thinking)
        if pattern.turns > 1 and not has_room(messages):
            pattern = HELD_OUT[0]
            messages = flagged(questions[-1:], [], pattern, thinking)
        told = problem.metadata | {"pattern": pattern.name}
        asked.append(replace(problem, messages=[*problem.messages[:-1], *messages], metadata=told))
    return asked


def said(problem: Problem) -> str:
    """A right answer to an earlier turn."""
    return problem.answer if problem.verifier in WHOLE_ANSWER else boxed(problem.answer)


def mode_metrics(rows: list[Row]) -> dict[str, float]:
    """`<suite>/<setting>/<accuracy|obeyed|direct|reasoned|length|forced>`, and obedience over all that was flagged."""
    metrics: dict[str, float] = {}
    for suite in sorted({row["suite"] for row in rows}):
        for setting in dict.fromkeys(row["setting"] for row in rows):
            mine = [row for row in rows if (row["suite"], row["setting"]) == (suite, setting)]
            judged = [row for row in mine if row["judged"]]
            numbers = {"length": _mean(mine, "tokens")} | ({"accuracy": _mean(judged, "right")} if judged else {})
            if setting in MODES:
                numbers["obeyed"] = _mean(mine, "obeyed")
            if setting in DIRECT:
                numbers["reasoned"] = _mean(mine, "reasoned")
                numbers |= {"direct": sum(map(_direct, judged)) / len(judged)} if judged else {}
            elif setting not in MODES:
                numbers["forced"] = _mean(mine, "forced")
            metrics |= {f"{suite}/{setting}/{name}": value for name, value in numbers.items()}
    flagged_rows = [row for row in rows if row["setting"] in MODES]
    for setting in sorted({row["setting"] for row in flagged_rows}):
        metrics[f"modes/{setting}_obeyed"] = _mean([row for row in flagged_rows if row["setting"] == setting], "obeyed")
    return metrics | ({"modes/obeyed": _mean(flagged_rows, "obeyed")} if flagged_rows else {})


def mode_results(rows: list[Row]) -> list[Row]:
    """Per setting and problem: n judged responses, c right and `direct` right ones of them, how many obeyed of how many
    samples."""
    results: dict[tuple[str, str], Row] = {}
    for row in rows:
        empty = {name: row[name] for name in ("setting", "pattern", "suite", "problem_id")}
        counted = dict.fromkeys(("n", "c", "direct", "samples", "obeyed", "tokens"), 0)
        result = results.setdefault((row["setting"], row["problem_id"]), empty | counted)
        result["n"] += row["judged"]
        result["c"] += row["judged"] and row["right"]
        result["direct"] += row["judged"] and _direct(row)
        result["samples"] += 1
        result["obeyed"] += row["obeyed"]
        result["tokens"] += row["tokens"]
    return list(results.values())


def _direct(row: Row) -> bool:
    return row["right"] and not row["reasoned"]


def _mean(rows: list[Row], name: str) -> float:
    return sum(float(row[name]) for row in rows) / len(rows)
