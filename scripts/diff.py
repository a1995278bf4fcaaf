"""What differs between two results or two runs, and where does the difference begin?

    python scripts/diff.py outputs/runs/A/stages/general_rl outputs/runs/B/stages/general_rl
    python scripts/diff.py outputs/runs/A outputs/runs/B           two runs, stage by stage; names of runs do too
    python scripts/diff.py outputs/store/sft-.../model /elsewhere/model

Contents are compared by digest; configs, inputs, data, code, packages, machine and held-out accuracy explain them.
Accuracies come from evaluations in the stores of either side, with 95% intervals; B - A is paired over the problems.
Exit status, as that of diff: 0 the contents are the same, 1 they differ, 2 bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.ask import diff_text
from pipeline.ask.differences import Comparison, compare, shared_ports
from pipeline.ask.evaluations import evaluation_at
from pipeline.ask.locate import Subject, existing, is_run, refused, run_at, stages_of, subject_at
from pipeline.ask.script import run_script
from pipeline.messages import Refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), help="where runs are looked up by name")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    arguments = parser.parse_args()
    try:
        runs = [find_run(written, arguments.output_dir) for written in (arguments.a, arguments.b)]
        if runs[0] is not None and runs[1] is not None:
            return diff_runs(runs[0], runs[1])
        if runs[0] is not None or runs[1] is not None:
            problem, one = ("is a run and the other is not", arguments.a if runs[0] else arguments.b)
            raise refused(one, problem, f"name one of its stages: {runs[0] or runs[1]}/stages/STAGE, or two runs")
        return diff_results(subject_at(arguments.a), subject_at(arguments.b))
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 2


def find_run(written: str, outputs: Path) -> Path | None:
    """A run by path or name; None where it is the path of something else."""
    if "/" not in written and not Path(written).exists():
        return run_at(written, outputs)
    path = existing(written)
    return path if is_run(path) else None


def diff_results(a: Subject, b: Subject) -> int:
    ports = shared_ports(a.lineage, b.lineage)
    comparison = compare(a.lineage, b.lineage, ports)
    for side, subject in (("A", a), ("B", b)):
        print(f"{side}  {subject.written}  {subject.lineage.own.stage} {subject.lineage.own.name}")
    for line in ancestry(a, b):
        print(line)
    section("", diff_text.verdict(comparison))
    section("", diff_text.surroundings(comparison))
    section("data", diff_text.data(comparison, (a.store, b.store)))
    models = [port for port in ports if a.outputs.get(port, {}).get("kind") == "model"]
    if models and not comparison.same:
        found = (diff_text.scores_of(side.lineage.own, models[0], (a.store, b.store)) for side in (a, b))
        notes, scores = diff_text.accuracy(*found)
        section("held-out accuracy, 95% intervals", notes + scores)
    elif not models and a.manifest and b.manifest:
        section("metrics", diff_text.metrics(a.manifest["metrics"], b.manifest["metrics"]))
    return 0 if comparison.same else 1


def ancestry(a: Subject, b: Subject) -> list[str]:
    """Whether one was made from the other."""
    for old, new, names in ((a, b, "B was made from A"), (b, a, "A was made from B")):
        digests = {output["digest"] for output in old.outputs.values()}
        if any(record.digests & digests for record in new.lineage.records[1:]):
            return [f"{names}: {old.lineage.own.stage} came before {new.lineage.own.stage}"]
    return []


def diff_runs(a: Path, b: Path) -> int:
    """Every stage that both have, against each other."""
    names = (stages_of(a), stages_of(b))
    shared = [name for name in names[0] if name in names[1]]
    if not shared:
        raise refused(str(b), f"shares no stage with {a}", "name runs that have stages in common")
    for side, run in (("A", a), ("B", b)):
        print(f"{side}  {run}  {command_of(run)}")
    comparison = Comparison()
    subjects = {name: (subject_at(str(a / "stages" / name)), subject_at(str(b / "stages" / name))) for name in shared}
    for one, other in subjects.values():
        compare(one.lineage, other.lineage, shared_ports(one.lineage, other.lineage), comparison)
    alone = [[name for name in names[i] if name not in shared] for i in (0, 1)]
    section("", [f"only in {side}: {', '.join(found)}" for side, found in zip("AB", alone, strict=True) if found])
    section("", diff_text.verdict(comparison))
    section("", diff_text.surroundings(comparison))
    stores = [next(iter(subjects.values()))[side].store for side in (0, 1)]
    section("data", diff_text.data(comparison, (stores[0], stores[1])))
    notes, scores = [], []
    for name in shared:
        found = [evaluation_at(run / "stages" / f"{name}.eval") for run in (a, b)]
        if found[0] is not None and found[1] is not None:
            said, lines = diff_text.accuracy([found[0]], [found[1]], "/pass@1")
            notes, scores = notes + said, scores + [f"{name:20}  {line}" for line in lines]
    section("held-out accuracy, 95% intervals", [*dict.fromkeys(notes), *scores])
    return 0 if comparison.same and not any(alone) else 1


def command_of(run: Path) -> str:
    file = run / "summary.json"
    return str(json.loads(file.read_text()).get("command", "")) if file.exists() else "unfinished"


def section(title: str, lines: list[str]) -> None:
    if lines:
        print("\n" + "\n".join([*([title] if title else []), *(f"  {line}" if title else line for line in lines)]))


if __name__ == "__main__":
    run_script(main)
