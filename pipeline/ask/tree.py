"""The tree of a lineage as text: what a result was made from, back to sources, seeds and commits.

    general_rl  rl-2e88105ec89a5cf4  seed 0  commit bfe708f
    ├─ policy: rejection_sft.model  sft-7c2df90a10ddf2f9  seed 0  commit bfe708f
    ...

A result that feeds several others is told where it first stands; elsewhere it is "as above".
"""

from __future__ import annotations

from typing import Any

from pipeline.lineage import Lineage, Origin, Record

# Fields of a config node that has a `source`: what it says about where things come from.
SOURCE_FIELDS = ("name_or_path", "name", "path", "revision", "subset", "split")
MADE_FIELDS = ("hidden_size", "layers", "families", "difficulty")  # where nothing is named: it is made here


def tree(lineage: Lineage) -> str:
    told: set[str] = set()
    lines = [headline(lineage), line_of(lineage.own), *_below(lineage, lineage.own, "", told)]
    return "\n".join([*lines, "", *footnotes(lineage)])


def headline(lineage: Lineage) -> str:
    """What the folder is, in one line."""
    ports = [lineage.output] if lineage.output else list(lineage.own.outputs)
    return "\n".join(f"{port}: {_described(port, lineage.own.outputs[port])}" for port in ports)


def line_of(record: Record) -> str:
    return f"{record.stage}  {_marks(record)}"


def _marks(record: Record) -> str:
    return f"{record.name}  seed {record.seed}  commit {commit_of(record)}"


def commit_of(record: Record) -> str:
    """Seven digits; a + where files were uncommitted."""
    commit = record.git["commit"]
    if commit is None:
        return f"unknown, code {record.source_digest}"
    return commit[:7] + ("+" if record.git["dirty"] else "")


def sources_of(record: Record) -> list[tuple[str, str]]:
    """(key, what it is) of the sources that a result's own config names."""
    found = []
    for key, value in record.config.items():
        if isinstance(value, dict) and "source" in value:
            found.append((key, _source(value, record)))
    return found


def _described(port: str, output: dict[str, Any]) -> str:
    facts = [] if output["kind"] == port else [output["kind"]]
    facts.append(f"digest {output['digest'][:12]}")
    if output.get("parameters"):
        facts.append(f"{output['parameters']:,} parameters")
    if output.get("adapter"):
        facts.append("an adapter")
    if "rows" in output:
        facts.append(f"{output['rows']:,} rows")
    for suite, splits in output.get("suites", {}).items():
        facts.append(f"{suite} {'/'.join(str(rows) for rows in splits.values())}")
    return ", ".join(facts)


def _source(node: dict[str, Any], record: Record) -> str:
    package = record.packages.get(str(node["source"]).replace("_", "-"))
    external = any(node.get(name) for name in ("name_or_path", "name", "path"))
    told = [node["source"] + (f" {package}" if package else "")]
    for name in (*(SOURCE_FIELDS if external else MADE_FIELDS), "seed"):
        value = node.get(name)
        if value not in (None, [], ""):
            told.append(f"{name} {' '.join(value) if isinstance(value, list) else value}")
    return ", ".join(told)


def _below(lineage: Lineage, record: Record, indent: str, told: set[str]) -> list[str]:
    """The branches under a record."""
    told.add(record.name)
    branches: list[tuple[str, Origin | str]] = [*record.inputs.items(), *record.files.items()]
    files = set(record.files)
    for key, text in sources_of(record):
        if not any(name.startswith(f"{key}.") and lineage.maker(record.files[name]) for name in files):
            branches.append((key, text))
    lines = []
    for number, (port, origin) in enumerate(branches):
        last = number == len(branches) - 1
        lines += _branch(lineage, port, origin, indent, last, told)
    return lines


def _branch(lineage: Lineage, port: str, origin: Origin | str, indent: str, last: bool, told: set[str]) -> list[str]:
    stem, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
    start = f"{indent}{stem}{port}: "
    if isinstance(origin, str):
        return [start + origin]
    maker = lineage.maker(origin)
    if maker is None:
        return [start + _outside(origin)]
    output = f"{maker.stage}.{lineage.port(origin)}"
    if maker.name in told:
        return [f"{start}{output}  (as above)"]
    return [f"{start}{output}  {_marks(maker)}", *_below(lineage, maker, indent + deeper, told)]


def _outside(origin: Origin) -> str:
    if not origin.wired or ("." in origin.wired and ":" not in origin.wired and "/" not in origin.wired):
        name = f"{origin.wired or 'something'}, {origin.fingerprint}"
        return f"{name}: its record is gone (the store no longer has it)"
    return f"{origin.wired}  digest {origin.digest[:12]}"


def footnotes(lineage: Lineage) -> list[str]:
    """What was the same for all results, or nearly: packages and machine."""
    made = lineage.own
    named = [name for name in ("python", "torch", "transformers") if name in made.packages]
    versions = [f"{name} {made.packages[name]}" for name in named]
    gpus = made.hardware.get("gpu_names") or []
    machine = f"{made.hardware.get('cores', '?')} cores of {made.hardware.get('cpu', 'an unknown CPU')}"
    lines = [f"made with {', '.join(versions)} on {gpus[0] if gpus else machine}"]
    others = sorted({commit_of(record) for record in lineage.records} - {commit_of(made)})
    if others:
        lines.append(f"not all at one commit: {', '.join([commit_of(made), *others])}")
    if any(record.git["dirty"] for record in lineage.records):
        lines.append("+ with uncommitted files; code tells them apart: " + _codes(lineage))
    return lines


def _codes(lineage: Lineage) -> str:
    codes = {f"{record.kind} {record.source_digest}" for record in lineage.records}
    return ", ".join(sorted(codes))
