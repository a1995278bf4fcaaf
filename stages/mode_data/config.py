"""`mode_data`: data in both thinking modes, for Qwen3's fusion (arXiv:2505.09388, section 4.3) and the RL behind it.

Thinking answers are verified responses that are given, mostly sampled from the RL model; answers without thinking are
the problems' own. Flags go into user and system turns, of one turn and of two, in the ways of
stages/parts/data/flags.py; some thinking conversations carry none, since thinking is the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.data.checks import suite_families, suite_parts
from stages.parts.data.config import DataConfig

RECIPE_VERSION = 4
INPUTS = {
    "problems": Port("dataset:problems", "questions and gold answers of every suite, in their splits"),
    "thinking": Port("dataset:conversations", "verified responses that think"),
    "general": Port("dataset:conversations", "more of them, of other suites", optional=True),
}
OUTPUTS = {
    "data": Port("dataset:conversations", "conversations in both modes, with flags, for SFT"),
    "problems": Port("dataset:problems", "the same problems with flags in their prompts, half of them in each mode"),
}
FACTS = ("suites", "families", "difficulty", "split_seed", "scored_by")  # of the problems, which stay what they are


@dataclass
class ModeDataConfig(StageConfig):
    kind: str = "mode_data"
    evaluate: bool = False
    conversations: int = 4096  # rows of `data`
    suites: dict[str, float] = field(default_factory=lambda: {"reasoning": 0.5, "general": 0.5})  # suite -> share
    no_thinking_fraction: float = 0.5  # of the conversations
    unflagged_fraction: float = 0.25  # of the thinking ones
    # Suites that are added here, so that the problems, and the base model that must not see them, stay what they are.
    more: dict[str, DataConfig] = field(default_factory=dict)

    def faults(self) -> list[Fault]:
        faults = super().faults()
        if self.conversations < 1:
            faults.append(Fault("conversations", f"is {self.conversations}", "write a positive number, 4096"))
        if not self.suites or any(share <= 0 for share in self.suites.values()):
            faults.append(Fault("suites", f"is {self.suites}", "give every suite a positive share, {reasoning: 1.0}"))
        for name in ("no_thinking_fraction", "unflagged_fraction"):
            if not 0.0 < getattr(self, name) < 1.0:
                problem = f"is {getattr(self, name)}: one mode, or one way to ask for it, would be missing"
                faults.append(Fault(name, problem, "write a share between 0 and 1, 0.5"))
        for suite, data in self.more.items():
            faults += [Fault(f"more.{suite}.{f.key}", f.problem, f.remedy) for f in data.faults()]
        return faults


def outline(cfg: ModeDataConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    problems = inputs["problems"]
    facts = with_more(cfg, {name: problems[name] for name in FACTS if name in problems})
    plan = Outline(outputs={"data": {"rows": cfg.conversations}, "problems": facts})
    for suite in [suite for suite in cfg.more if suite in problems.get("suites", {})]:
        remedy = "give it another name, or leave it out"
        plan.faults.append(Fault(f"more.{suite}", "is a suite that the problems have already", remedy))
    known = facts.get("suites", {})
    for suite in [suite for suite in cfg.suites if known and not known.get(suite, {}).get("train")]:
        problem = f"names '{suite}', the problems have {', '.join(sorted(known))}"
        plan.faults.append(Fault("suites", problem, "write one of these"))
    if inputs["thinking"].get("rows") == 0:
        plan.faults.append(Fault("inputs.thinking", "holds no conversations", "wire a dataset with rows"))
    return plan


def with_more(
    cfg: ModeDataConfig, facts: dict[str, Any], found: dict[str, dict[str, int]] | None = None
) -> dict[str, Any]:
    """The facts of the problems with the suites that are added to them; `found`: how many problems of each split they
    have, where that is known (at most as many as are asked for)."""
    if not cfg.more or "suites" not in facts:
        return facts
    added: dict[str, dict[str, Any]] = {
        "suites": found
        or {
            suite: {"train": data.train_problems, "dev": data.dev_problems, "test": data.test_problems}
            for suite, data in cfg.more.items()
        },
        "families": {suite: data.families or suite_families(data) for suite, data in cfg.more.items()},
        "difficulty": {suite: data.difficulty for suite, data in cfg.more.items()},
        "scored_by": {suite: parts for suite, data in cfg.more.items() if (parts := suite_parts(data))},
    }
    return facts | {name: facts.get(name, {}) | values for name, values in added.items()}
