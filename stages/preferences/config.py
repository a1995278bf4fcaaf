"""`preferences`: pairs of responses, a better and a worse one, for a reward model.

Embedded: made by rules for the open problems of a problem set, train pairs from train problems and so on, so that no
prompt stands in two splits. Or from a file of one's own with a prompt, a chosen and a rejected response a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II

from pipeline.artifacts import Fault, Outline, Port
from pipeline.config import StageConfig, local_path

RECIPE_VERSION = 4
INPUTS = {
    "problems": Port("dataset:problems", "source=embedded: the problems that pairs are made for", optional=True),
}
OUTPUTS = {"preferences": Port("dataset:preferences", "pairs in splits train, dev and test that share no prompt")}
SOURCES = ("embedded", "jsonl")
SIZES = {"train": "train_pairs", "dev": "dev_pairs", "test": "test_pairs"}
AXES = {"helpful": "helpfulness", "safety": "harmlessness"}  # of the embedded suites


@dataclass
class PreferencesConfig(StageConfig):
    kind: str = "preferences"
    seed: int = II("data.seed")
    evaluate: bool = False
    source: str = "embedded"  # embedded | jsonl
    suites: list[str] = field(default_factory=lambda: ["helpful", "safety"])  # embedded
    pairs_per_problem: int = 2  # embedded: each with another fault
    path: str | None = local_path()  # jsonl: a .jsonl or .parquet file
    columns: dict[str, str] = field(default_factory=dict)  # ours -> theirs: prompt, chosen, rejected, axis
    axis: str = "helpfulness"  # jsonl: of rows without one; harmlessness is judged on the whole response
    # at most so many; of a file with fewer rows dev and test take what they ask for, 40% at most
    train_pairs: int = 4096
    dev_pairs: int = 256
    test_pairs: int = 512

    def faults(self) -> list[Fault]:
        from stages.preferences.checks import file_faults

        faults = super().faults()
        for key in ("pairs_per_problem", "train_pairs", "dev_pairs", "test_pairs"):
            if getattr(self, key) < 1:
                faults.append(Fault(key, f"is {getattr(self, key)}", "write 1 or more"))
        if self.source not in SOURCES:
            return [*faults, Fault("source", f"'{self.source}' is unknown", f"write {' or '.join(SOURCES)}")]
        if self.source == "jsonl":
            return faults + file_faults(self)
        if self.path:
            problem = f"is '{self.path}', which source=embedded does not read"
            faults.append(Fault("path", problem, "write stages.NAME.source=jsonl, or leave it out"))
        if not self.suites:
            faults.append(Fault("suites", "is empty", f"write some of {', '.join(AXES)}"))
        return faults

    def sizes(self) -> dict[str, int]:
        """Split -> pairs, at most."""
        return {split: getattr(self, key) for split, key in SIZES.items()}


def outline(cfg: PreferencesConfig, inputs: dict[str, dict[str, Any]]) -> Outline:
    """Numbers of pairs are upper bounds."""
    facts: dict[str, Any] = {"pairs": cfg.sizes()}
    if cfg.source == "jsonl":
        reason = "source=jsonl takes the pairs as they are"
        return Outline({"preferences": facts}, inert=dict.fromkeys(("suites", "pairs_per_problem"), reason))
    plan = Outline({"preferences": facts}, inert={"axis": "source=embedded knows the axis of its pairs"})
    if "problems" not in inputs:
        problem = "source=embedded makes pairs for the problems of this port, which is not wired"
        remedy = "write stages.NAME.inputs.problems=problems.problems, or stages.NAME.source=jsonl"
        plan.faults.append(Fault("inputs.problems", problem, remedy))
        return plan
    known: dict[str, dict[str, int]] | None = inputs["problems"].get("suites")
    if known is None:
        return plan
    named = inputs["problems"].get("scored_by", {})
    for suite in cfg.suites:
        if suite not in known:
            problem = f"names '{suite}', the problems have {', '.join(sorted(known))}"
            remedy = f"give the problem set that suite, +suite@stages.problems.{suite}={suite}, or leave it out"
            plan.faults.append(Fault("suites", problem, remedy))
        elif suite not in named:
            problem = f"names '{suite}', whose answers are right or wrong: there is nothing to prefer by rules"
            plan.faults.append(Fault("suites", problem, f"write some of {', '.join(AXES)}"))
    available = {
        split: sum(known.get(suite, {}).get(split, 0) for suite in cfg.suites) * cfg.pairs_per_problem
        for split in SIZES
    }
    facts["pairs"] = {split: min(count, available[split]) for split, count in cfg.sizes().items()}
    facts["axes"] = [AXES[suite] for suite in cfg.suites if suite in AXES]
    return plan
