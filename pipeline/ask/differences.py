"""What differs between two results, and where it begins.

Two results are laid side by side and followed down their inputs, port by port, as long as the contents differ. A pair
whose inputs are all the same is where a difference begins; one above it adds differences of its own, or only follows.
Contents are compared by digest, recipes by the resolved config of each side.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

from pipeline.kinds import kinds
from pipeline.lineage import Lineage, Origin, Record

ABSENT = "(none)"
Change = tuple[str, Any, Any]  # what, in A, in B
RAN = ("ranks", "threads")
NAMED_ONLY = ("kind", "inputs", "engine")  # of a config: told elsewhere


@dataclass
class Pair:
    """Two results that play the same part on either side."""

    a: Record
    b: Record
    same: bool  # the contents that are asked about are equal
    own: list[Change] = field(default_factory=list)  # config, seed, files, wiring, recipe version: what may change it
    ran: list[Change] = field(default_factory=list)  # what must not change it: ranks, engine, micro-batches, ...
    through: list[str] = field(default_factory=list)  # input ports whose contents differ

    @property
    def begins(self) -> bool:
        return not self.same and not self.through

    @property
    def code_changed(self) -> bool:
        return self.a.source_digest != self.b.source_digest


@dataclass
class Comparison:
    """All pairs that differ, sources first; the asked one (or ones, of two runs) may be equal and stands there too."""

    pairs: list[Pair] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return all(pair.same for pair in self.pairs)


def compare(a: Lineage, b: Lineage, ports: list[str], into: Comparison | None = None) -> Comparison:
    """Follow the difference between two results. `ports`: the outputs that are asked about."""
    comparison = into or Comparison()
    same = all(_digest(a.own, port) == _digest(b.own, port) for port in ports)
    _visit(a, b, a.own, b.own, same, comparison)
    return comparison


def shared_ports(a: Lineage, b: Lineage) -> list[str]:
    """The outputs to compare: those that both sides mean, or all of either where they share none."""
    asked = [{side.output} if side.output else set(side.own.outputs) for side in (a, b)]
    return sorted(asked[0] & asked[1] or asked[0] | asked[1])


def _digest(record: Record, port: str) -> str:
    return record.outputs.get(port, {}).get("digest", "")


def _visit(a: Lineage, b: Lineage, one: Record, other: Record, same: bool, comparison: Comparison) -> None:
    if any((pair.a.name, pair.b.name) == (one.name, other.name) for pair in comparison.pairs):
        return
    pair = Pair(one, other, same)
    if one.kind != other.kind:
        pair.own.append(("made by a stage of kind", one.kind, other.kind))
    else:
        _compare_recipes(pair)
    for port in dict.fromkeys([*one.inputs, *other.inputs]):
        mine, theirs = one.inputs.get(port), other.inputs.get(port)
        if mine is None or theirs is None:
            pair.own.append((f"inputs.{port}", _wired(mine), _wired(theirs)))
        elif mine.digest != theirs.digest:
            _follow(a, b, pair, port, mine, theirs, comparison)
    comparison.pairs.append(pair)


def _follow(a: Lineage, b: Lineage, pair: Pair, port: str, mine: Origin, theirs: Origin, found: Comparison) -> None:
    """An input whose content differs: the difference came in through it, or the port was wired to something else."""
    makers = a.maker(mine), b.maker(theirs)
    if makers[0] is None or makers[1] is None or makers[0].kind != makers[1].kind:
        pair.own.append((f"inputs.{port}", _wired(mine, True), _wired(theirs, True)))
    elif makers[0].stage != makers[1].stage and mine.wired != theirs.wired:
        pair.own.append((f"inputs.{port}", mine.wired or makers[0].stage, theirs.wired or makers[1].stage))
    else:
        pair.through.append(port)
        _visit(a, b, makers[0], makers[1], False, found)


def _wired(origin: Origin | None, digest: bool = False) -> str:
    if origin is None:
        return ABSENT
    return f"{origin.wired} {origin.digest[:8]}".strip() if digest or not origin.wired else origin.wired


def _compare_recipes(pair: Pair) -> None:
    a, b = pair.a, pair.b
    if a.recipe_version != b.recipe_version:
        pair.own.append(("RECIPE_VERSION", a.recipe_version, b.recipe_version))
    silent = silent_fields(a.kind)
    files = {key: _file_change(key, a, b) for key in [*a.files, *b.files]}
    for key, old, new in changes(a.config, b.config):
        if key.split(".")[0] in NAMED_ONLY or key in files:
            continue
        quiet = any(key == name or key.startswith(f"{name}.") for name in silent)
        (pair.ran if quiet else pair.own).append((key, old, new))
    pair.own += [change for change in files.values() if change is not None]
    if a.engine != b.engine:
        pair.ran += [(f"engine.{key}", old, new) for key, old, new in changes(a.engine, b.engine)]
    pair.ran += [(name, getattr(a, name), getattr(b, name)) for name in RAN if getattr(a, name) != getattr(b, name)]


def _file_change(key: str, a: Record, b: Record) -> Change | None:
    """A local file counts by its content, not by where it lies."""
    if key in a.files and key in b.files and a.files[key].digest == b.files[key].digest:
        return None
    return key, _wired(a.files.get(key), True), _wired(b.files.get(key), True)


def silent_fields(kind: str) -> list[str]:
    """Config keys of a kind that are no part of its fingerprint."""
    return _silent(kinds()[kind].config) if kind in kinds() else []


def _silent(config: Any, prefix: str = "") -> list[str]:
    found, hints = [], typing.get_type_hints(config)
    for item in dataclasses.fields(config):
        if not item.metadata.get("fingerprint", True):
            found.append(f"{prefix}{item.name}")
        elif dataclasses.is_dataclass(hints[item.name]):
            found += _silent(hints[item.name], f"{prefix}{item.name}.")
    return found


def changes(a: dict[str, Any], b: dict[str, Any]) -> list[Change]:
    """(key with dots, in A, in B) of two nested mappings, in the order of A."""
    one, other = flat(a), flat(b)
    keys = dict.fromkeys([*one, *other])
    both = [(key, one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys]
    return [change for change in both if change[1] != change[2]]


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
