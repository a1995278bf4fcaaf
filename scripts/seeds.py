"""The story of several seeds as one table: held-out accuracy of every model, and the paired differences that matter.

    python scripts/seeds.py outputs/runs/r1_style-seed0 outputs/runs/r1_style-seed1 ...

Every run must have answered the same test problems (`seed=` leaves them alone, `data.seed=` does not). Differences are
paired over problems; intervals are 95%, bootstrapped over problems.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.ask.script import run_script
from pipeline.report.load import RunView, load_run
from pipeline.statistics import Estimate, paired_difference, pass_at_k

# after, before, suite: what the recipe claims (conf/pipeline/r1_style.yaml)
CLAIMS = (
    ("cold_start", "base", "reasoning"),
    ("reasoning_rl", "cold_start", "reasoning"),
    ("rejection_sft", "cold_start", "reasoning"),
    ("general_rl", "rejection_sft", "general"),
    ("general_rl", "rejection_sft", "reasoning"),
    ("general_rl", "rejection_sft", "safety"),
    ("general_rl", "rejection_sft", "helpful"),
    ("distillation", "distillation_control", "reasoning"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="runs, one a seed: folders, or names below outputs/runs")
    arguments = parser.parse_args()
    paths = [path if path.exists() else Path("outputs/runs") / path for path in arguments.runs]
    runs = [load_run(path) for path in paths]
    missing = [str(path) for path, run in zip(arguments.runs, runs, strict=True) if not run.stages]
    if missing:
        print(f"no run in {', '.join(missing)}: write folders of runs, or names below outputs/runs", file=sys.stderr)
        return 2
    names = headings(runs, arguments.runs)
    for suite in suites(runs):
        k = largest_k(runs, suite)
        print(f"\n**{suite}**, test accuracy: pass@1{f' (pass@{k})' if k > 1 else ''}\n")
        print_table(["model", *names], [[stage, *cells] for stage, cells in accuracies(runs, suite, k)])
    print("\n**Differences** of pass@1 in points, paired, with 95% intervals\n")
    print_table(["after − before", "suite", *names], list(differences(runs)))
    print()
    print_table(["", *names], [["minutes", *[f"{run.seconds / 60:.1f}" for run in runs]]])
    return 0


def headings(runs: list[RunView], paths: list[Path]) -> list[str]:
    """Names; with seeds where two runs have one name; paths where that does not tell them apart either."""
    names = [run.name for run in runs]
    seeds = [next((stage.artifact["seed"] for stage in run.stages if "seed" in stage.artifact), "?") for run in runs]
    with_seeds = [f"{name}, seed {seed}" for name, seed in zip(names, seeds, strict=True)]
    return next((told for told in (names, with_seeds) if len(set(told)) == len(runs)), [str(path) for path in paths])


def suites(runs: list[RunView]) -> list[str]:
    """Those that any model of any run was evaluated on, in the order in which they are met."""
    evaluations = [view for run in runs for stage in run.main_stages if (view := run.evaluation(stage.name))]
    return list(dict.fromkeys(row["suite"] for view in evaluations for row in view.results))


def largest_k(runs: list[RunView], suite: str) -> int:
    """The largest k whose pass@k can be had from every run that has measured any: the least of their largest."""
    largest = []
    for run in runs:
        names = [name for stage in run.main_stages if (view := run.evaluation(stage.name)) for name in view.metrics]
        found = [re.fullmatch(rf"{suite}/pass@(\d+)", name) for name in names]
        largest += [max(int(match[1]) for match in found if match)] if any(found) else []
    return min(largest, default=1)


def accuracies(runs: list[RunView], suite: str, k: int) -> list[tuple[str, list[str]]]:
    stages = [stage.name for stage in runs[0].main_stages if runs[0].evaluation(stage.name)]
    return [(stage, [_accuracy(run, stage, suite, k) for run in runs]) for stage in stages]


def differences(runs: list[RunView]) -> list[list[str]]:
    rows = []
    for after, before, suite in CLAIMS:
        cells = []
        for run in runs:
            difference = paired_difference(rates(run, after, suite), rates(run, before, suite))
            cells.append("–" if difference is None else _points(difference))
        if set(cells) != {"–"}:
            rows.append([f"{after} − {before}", suite, *cells])
    return rows


def rates(run: RunView, stage: str, suite: str) -> dict[str, float]:
    """problem -> share of its responses that were right; {} where the model was not evaluated."""
    evaluation = run.evaluation(stage)
    rows = evaluation.results if evaluation else []
    return {row["problem_id"]: row["c"] / row["n"] for row in rows if row["suite"] == suite and row["n"]}


def _accuracy(run: RunView, stage: str, suite: str, k: int) -> str:
    evaluation = run.evaluation(stage)
    rows = [row for row in evaluation.results if row["suite"] == suite and row["n"] >= k] if evaluation else []
    if not rows:
        return "–"
    one = sum(row["c"] / row["n"] for row in rows) / len(rows)
    many = sum(pass_at_k(row["n"], row["c"], k) for row in rows) / len(rows)
    return f"{100 * one:.1f}" + (f" ({100 * many:.1f})" if k > 1 else "")


def _points(difference: Estimate) -> str:
    return f"{100 * difference.mean:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"


def print_table(head: list[str], rows: list[list[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    run_script(main)
