"""`problems`: problem sets with disjoint train, dev and test splits, and demonstrations for the first SFT."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig
from stages.parts.data.config import DataConfig

RECIPE_VERSION = 3
INPUTS: dict[str, Port] = {}
OUTPUTS = {
    "problems": Port("dataset:problems", "rows of every suite, in splits train, dev and test that share no problem"),
    "demonstrations": Port(
        "dataset:conversations", "reasoning demonstrations on training problems, for the cold start"
    ),
    "general": Port("dataset:conversations", "demonstrations of the other suites, for SFT beside reasoning data"),
}


@dataclass
class ProblemsConfig(StageConfig):
    kind: str = "problems"
    seed: int = II("data.seed")
    evaluate: bool = False
    reasoning: DataConfig = II("data")  # suite "reasoning"
    general: DataConfig = II("general_data")  # suite "general"
    # Off unless chosen, with the seed of the others: +suite@stages.problems.safety=safety
    helpful: DataConfig | None = None  # suite "helpful": open-ended requests, scored by a reward model
    safety: DataConfig | None = None  # suite "safety": requests to refuse, and look-alikes not to refuse

    def suites(self) -> dict[str, DataConfig]:
        chosen = {"helpful": self.helpful, "safety": self.safety}
        more = {name: replace(data, seed=self.general.seed) for name, data in chosen.items() if data is not None}
        return {"reasoning": self.reasoning, "general": self.general, **more}

    def faults(self) -> list[Fault]:
        faults = super().faults()
        for suite, data in self.suites().items():
            faults += [Fault(f"{suite}.{fault.key}", fault.problem, fault.remedy) for fault in data.faults()]
        if not faults and self.reasoning.seed != self.general.seed:
            faults.append(
                Fault("general.seed", "differs from the seed of the reasoning suite", "set both by data.seed alone")
            )
        return faults


def outline(cfg: ProblemsConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Sizes are what is asked for: an upper bound where a file has fewer rows."""
    from stages.parts.data.checks import has_demonstrations, unread

    rows = {suite: data.demonstrations if has_demonstrations(data) else 0 for suite, data in cfg.suites().items()}
    outline = Outline(
        outputs={
            "problems": problem_facts(cfg),
            "demonstrations": {"rows": rows.pop("reasoning")},
            "general": {"rows": sum(rows.values())},
        },
        redundant=[name for name in ("helpful", "safety") if getattr(cfg, name) is None],
    )
    for suite, data in cfg.suites().items():
        outline.inert |= {f"{suite}.{name}": f"source={data.source} does not read it" for name in unread(data)}
    return outline


def problem_facts(cfg: ProblemsConfig) -> dict[str, Any]:
    """What later stages may rely on before the problems exist: suites, families, and how they were split."""
    from stages.parts.data.checks import suite_families, suite_parts

    named = {suite: parts for suite, data in cfg.suites().items() if (parts := suite_parts(data))}
    return {
        "suites": {
            suite: {"train": data.train_problems, "dev": data.dev_problems, "test": data.test_problems}
            for suite, data in cfg.suites().items()
        },
        "families": {suite: data.families or suite_families(data) for suite, data in cfg.suites().items()},
        "difficulty": {suite: data.difficulty for suite, data in cfg.suites().items()},
        "split_seed": cfg.reasoning.seed,
    } | ({"scored_by": named} if named else {})
