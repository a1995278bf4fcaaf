"""What the report of a sweep knows: its ledger, and of every finished job its run and how it answered each problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from pipeline.report.load import RunView, StageView, load_run, read_json
from pipeline.statistics import Estimate, estimate

Rates = dict[str, float]  # problem id -> share of right responses


@dataclass
class JobView:
    name: str
    status: str  # waiting | running | done | failed | refused | interrupted
    message: str
    values: dict[str, str]  # axis -> value
    run: RunView | None  # of a job that is done

    def rates(self, stage: str, suite: str) -> Rates:
        """Share of right responses to each held-out problem after `stage`; empty where it was not evaluated."""
        assert self.run is not None
        evaluation = self.run.evaluation(stage)
        return evaluation.rates(suite) if evaluation else {}

    def stage(self, name: str) -> StageView | None:
        return self.run.by_name.get(name) if self.run else None


@dataclass
class SweepView:
    name: str
    command: str
    overrides: list[str]  # of the base
    axes: dict[str, list[str]]
    jobs: list[JobView] = field(default_factory=list)

    @property
    def done(self) -> list[JobView]:
        return [job for job in self.jobs if job.run is not None]

    @property
    def runs(self) -> list[RunView]:
        return [job.run for job in self.jobs if job.run is not None]

    @cached_property
    def touched(self) -> list[str]:
        """Stages that came out of different recipes in different jobs, in the order of the recipe; no evaluations."""
        names = dict.fromkeys(stage.name for run in self.runs for stage in run.main_stages)
        return [name for name in names if len({_fingerprint(run, name) for run in self.runs}) > 1]

    @cached_property
    def evaluated(self) -> list[str]:
        return [name for name in self.touched if all(run.evaluation(name) for run in self.runs)]

    @cached_property
    def trained(self) -> list[str]:
        """Of the touched stages, those whose steps are worth a curve: RL where there is any."""
        stages = [run.by_name[name] for name in self.touched for run in self.runs[:1] if name in run.by_name]
        online = [stage.name for stage in stages if stage.kind in ("rl", "ppo")]
        return online or [stage.name for stage in stages if stage.rows]

    def suites(self, stage: str) -> list[str]:
        found = [evaluation for run in self.runs[:1] if (evaluation := run.evaluation(stage))]
        return list(dict.fromkeys(row["suite"] for evaluation in found for row in evaluation.results))

    def pairs(self, axis: str, one: str, other: str) -> list[tuple[JobView, JobView]]:
        """Jobs that differ in this axis alone: (with `one`, with `other`). Two pairs of the same results count once, as
        where an earlier sweep wrote the value of an axis that a later one left as it is."""
        by_rest: dict[tuple[tuple[str, str], ...], dict[str, JobView]] = {}
        for job in self.done:
            rest = tuple(sorted((key, value) for key, value in job.values.items() if key != axis))
            by_rest.setdefault(rest, {})[job.values.get(axis, "")] = job
        found = [(jobs[one], jobs[other]) for jobs in by_rest.values() if one in jobs and other in jobs]
        return list({(self._results(a), self._results(b)): (a, b) for a, b in reversed(found)}.values())[::-1]

    def _results(self, job: JobView) -> tuple[str, ...]:
        return tuple(_fingerprint(job.run, name) for name in self.touched) if job.run else ()


def _fingerprint(run: RunView, stage: str) -> str:
    return run.by_name[stage].planned.get("fingerprint", "") if stage in run.by_name else ""


def load_sweep(folder: Path) -> SweepView:
    ledger = read_json(folder / "sweep.json")
    jobs = []
    for name, entry in ledger.get("jobs", {}).items():
        run = load_run(folder / name) if entry["status"] == "done" else None
        jobs.append(JobView(name, entry["status"], entry.get("message", ""), entry.get("values", {}), run))
    base = ledger.get("base", {})
    return SweepView(folder.name, ledger.get("command", ""), base.get("overrides", []), ledger.get("axes", {}), jobs)


def mean_rates(answers: list[Rates]) -> Rates:
    """Over jobs, problem by problem; problems that all of them answered."""
    shared = set.intersection(*(set(one) for one in answers)) if answers else set()
    return {problem: sum(one[problem] for one in answers) / len(answers) for problem in sorted(shared)}


def interaction(view: SweepView, axes: tuple[str, str], stage: str, suite: str) -> Estimate | None:
    """(last, last) - (last, first) - (first, last) + (first, first) of the values of two axes, averaged over all
    others; None where a corner is missing."""
    (one, two), corners = axes, {}
    for first in (0, -1):
        for second in (0, -1):
            wanted = {one: view.axes[one][first], two: view.axes[two][second]}
            jobs = [job for job in view.done if all(job.values.get(key) == value for key, value in wanted.items())]
            corners[first, second] = mean_rates([job.rates(stage, suite) for job in jobs])
    shared = set.intersection(*(set(rates) for rates in corners.values()))
    if not shared:
        return None
    parts = [
        corners[-1, -1][key] - corners[-1, 0][key] - corners[0, -1][key] + corners[0, 0][key] for key in sorted(shared)
    ]
    return estimate(parts)


def axis_pairs(view: SweepView) -> list[tuple[str, str]]:
    return list(combinations([axis for axis in view.axes if axis != "seed" and len(view.axes[axis]) > 1], 2))
