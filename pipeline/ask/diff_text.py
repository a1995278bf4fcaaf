"""A comparison as text: where the difference begins, what was changed on purpose, what else was not the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.ask.differences import Change, Comparison, Pair, changes
from pipeline.ask.evaluations import Evaluation, comparable, difference, evaluations_of
from pipeline.ask.tree import commit_of
from pipeline.lineage import Record
from pipeline.statistics import Estimate
from pipeline.store import MANIFEST

COMMON = 3  # a change that so many results share is told once
MOST_CHANGES = 12  # of one result
MOST_FACTS = 6  # of one data set
MOST_DATA_BYTES = 2**28  # beyond it, rows are not compared one by one


def verdict(comparison: Comparison) -> list[str]:
    """What began the difference, and every change that may have had a part in it."""
    differing = [pair for pair in comparison.pairs if not pair.same]
    lines = []
    if differing:
        lines.append(f"the difference begins at: {', '.join(_stage(pair) for pair in differing if pair.begins)}")
    elif any(pair.own for pair in comparison.pairs):
        lines.append("the same content, by recipes that differ")
    else:
        lines.append("the same content, by the same recipe")
    counts: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        for change in pair.own:
            counts.setdefault(json.dumps(change, default=str), []).append(pair)
    common = {key: pairs for key, pairs in counts.items() if len(pairs) >= COMMON}
    for key, sharing in common.items():
        lines += [f"{_several(_stage(pair) for pair in sharing)}:", _change(json.loads(key))]
    follows = []
    for pair in comparison.pairs:
        own = [change for change in pair.own if json.dumps(change, default=str) not in common]
        if own:
            lines += [f"{_stage(pair)}:", *map(_change, own[:MOST_CHANGES])]
            lines += [f"    and {len(own) - MOST_CHANGES} more"] * (len(own) > MOST_CHANGES)
        elif not pair.same and not pair.own:
            if pair.begins:
                lines.append(f"{_stage(pair)}: by the same recipe from the same inputs; see code, packages and machine")
            elif not pair.a.stage.endswith(".eval"):
                follows.append(_stage(pair))
    if follows:
        lines.append(f"with no change but in their inputs: {', '.join(follows)}")
    return lines


def surroundings(comparison: Comparison) -> list[str]:
    """Code, packages and machine, of every pair that is told."""
    pairs = comparison.pairs
    lines = []
    commits = _distinct((commit_of(pair.a), commit_of(pair.b)) for pair in pairs)
    changed = _several(_stage(pair) for pair in pairs if pair.code_changed)
    if commits:
        told = f"code differs for {changed}" if changed else "the code of these stages is the same"
        lines.append(f"commit     {'; '.join(f'{a} -> {b}' for a, b in commits)}: {told}")
        first = next((pair for pair in pairs if pair.code_changed), None)
        if first is not None and first.a.git["commit"] and first.a.git["commit"] != first.b.git["commit"]:
            a, b = first.a.git["commit"][:7], first.b.git["commit"][:7]
            lines.append(f"           git diff {a} {b} -- pipeline stages")
    elif changed:
        lines.append(f"code       differs for {changed}, at the same commit with uncommitted files")
    lines += _grouped("packages", [change for pair in pairs for change in changes(pair.a.packages, pair.b.packages)])
    lines += _grouped("machine", [change for pair in pairs for change in changes(pair.a.hardware, pair.b.hardware)])
    lines += _grouped("ran with", [change for pair in pairs for change in pair.ran])
    return lines


def data(comparison: Comparison, stores: tuple[Path | None, Path | None]) -> list[str]:
    """Rows and other facts of the data sets that differ."""
    lines = []
    for pair in comparison.pairs:
        for port, mine in pair.a.outputs.items():
            theirs = pair.b.outputs.get(port)
            if theirs is None or not mine["kind"].startswith("dataset") or mine["digest"] == theirs["digest"]:
                continue
            folders = (_output(pair.a, port, stores[0]), _output(pair.b, port, stores[1]))
            told = _shared_rows(*folders) if mine["kind"] != "dataset:rollouts" else []
            told += [_change(one) for one in changes(mine, theirs) if one[0] not in ("digest", "path", "kind", "rows")]
            lines += [f"{_stage(pair)}.{port}:", *told[:MOST_FACTS]] if told else [f"{_stage(pair)}.{port}: other rows"]
    return lines


def accuracy(a: list[Evaluation], b: list[Evaluation], only: str = "") -> tuple[list[str], list[str]]:
    """Notes, and held-out scores side by side (`only`: those of one name, pass@1). The difference is paired where both
    answered the same problems. Nothing where the scores are the same."""
    chosen = comparable(a, b)
    if chosen is None:
        sides = [name for name, found in (("A", a), ("B", b)) if not found]
        return [f"no evaluation of {' and '.join(sides)} is at hand"], []
    one, other = chosen
    mine, theirs = one.scores(), other.scores()
    if mine == theirs:
        return [], []
    notes, lines = [], []
    if apart := changes(one.config, other.config):
        notes.append(f"evaluated differently: {', '.join(f'{key} {_value(x)} -> {_value(y)}' for key, x, y in apart)}")
    if one.problems != other.problems:
        notes.append("evaluated on other problems: not paired")
    for key in [key for key in mine if key in theirs and key.endswith(only)]:
        gap = difference(key, one, other) if not apart else None
        paired = f"   {_signed(gap)} paired, {gap.problems} problems" if gap is not None else ""
        lines.append(f"{key:20}  {_percent(mine[key])} -> {_percent(theirs[key])}{paired}")
    return notes, lines


def scores_of(record: Record, port: str, stores: tuple[Path | None, ...]) -> list[Evaluation]:
    """Evaluations of a record's output in any of the stores: a folder moved elsewhere has none beside it."""
    digest = record.outputs.get(port, {}).get("digest", "")
    return [found for store in dict.fromkeys(stores) for found in evaluations_of(digest, store)]


def metrics(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Final metrics of a stage that makes no model; clock and memory apart."""
    kept = [one for one in changes(a, b) if not one[0].startswith(("time/", "memory/"))]
    more = [f"and {len(kept) - MOST_CHANGES} more"] * (len(kept) > MOST_CHANGES)
    return [f"{key}  {_value(x)} -> {_value(y)}" for key, x, y in kept[:MOST_CHANGES]] + more


def _stage(pair: Pair) -> str:
    return pair.a.stage if pair.a.stage == pair.b.stage else f"{pair.a.stage}/{pair.b.stage}"


def _change(change: Change) -> str:
    key, a, b = change
    return f"    {key}: {_value(a)} -> {_value(b)}"


def _value(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _several(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found) if len(found) <= 4 else f"{', '.join(found[:3])} and {len(found) - 3} more"


def _distinct(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


def _grouped(title: str, found: list[Change]) -> list[str]:
    told = list(dict.fromkeys(f"{key} {_value(a)} -> {_value(b)}" for key, a, b in found))
    return [f"{title:10} {', '.join(told)}"] if told else []


def _output(record: Record, port: str, store: Path | None) -> Path | None:
    """The folder of a record's output in a store, if it is still there with the same content."""
    manifest = store / record.name / MANIFEST if store is not None else None
    if manifest is None or not manifest.exists():
        return None
    made = json.loads(manifest.read_text())["outputs"][port]
    return manifest.parent / made["path"] if made["digest"] == record.outputs[port]["digest"] else None


def _shared_rows(a: Path | None, b: Path | None) -> list[str]:
    """How many rows the splits share, as whole lines; nothing where the files are not at hand."""
    told: list[str] = []
    if a is None or b is None:
        return told
    for file in sorted(a.glob("*.jsonl")):
        other = b / file.name
        if not other.exists() or file.stat().st_size + other.stat().st_size > MOST_DATA_BYTES:
            continue
        mine, theirs = file.read_text().splitlines(), other.read_text().splitlines()
        if mine != theirs:
            shared = len(set(mine) & set(theirs))
            told.append(f"    {file.stem}: {len(mine)} rows -> {len(theirs)} rows, {shared} of them the same")
    return told


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f}% ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})"


def _signed(gap: Estimate) -> str:
    return f"{100 * gap.mean:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
