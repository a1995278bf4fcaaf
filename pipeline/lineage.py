"""Lineage: how a result came about, down to sources, seeds and commits, kept in the output's own folder.

Every output that is a model or a data set carries `lineage.json`: the record of the result that it belongs to, and
those of all results before it. So a folder that is moved elsewhere, or outlives its store, still knows. The file is
written when the result is sealed and is no part of the content (`store.digest_folder` leaves it out). It holds no
clock values: where two runs make the same bytes, these are the same too.

Inputs are joined to the records that made them by the digest of the content, never by a path. Results that were sealed
before there was a lineage.json are read from the manifests of their store.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import Artifact
from pipeline.config import StageConfig
from pipeline.job import plain
from pipeline.plan_types import PlannedStage
from pipeline.sources import Digests
from pipeline.store import LINEAGE, MANIFEST, read_yaml

# What a manifest and a record share: everything but metrics and clock.
SHARED = (
    *("kind", "stage", "fingerprint", "recipe_version", "source_digest", "seed"),
    *("engine", "ranks", "threads", "git", "packages", "hardware", "outputs"),
)


@dataclass
class Origin:
    """Where one input came from."""

    wired: str  # as the pipeline says it: "cold_start.model", "hub:org/name@rev", "path:dir"; "" where not recorded
    fingerprint: str  # of the recipe that made it, or of the external thing
    digest: str  # of its content
    made: str = ""  # digest of the recorded output that it is a copy of, where that is not `digest` itself


@dataclass
class Record:
    """One result as it was sealed."""

    kind: str
    stage: str
    fingerprint: str
    recipe_version: int
    source_digest: str
    seed: int
    engine: dict[str, Any]
    ranks: int
    threads: int
    git: dict[str, Any]
    packages: dict[str, str]
    hardware: dict[str, Any]
    outputs: dict[str, dict[str, Any]]  # port -> kind, path, digest and facts
    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Origin] = field(default_factory=dict)  # by port
    files: dict[str, Origin] = field(default_factory=dict)  # by config key: local files and folders that it read

    @property
    def name(self) -> str:
        """As its folder in the store is called."""
        return f"{self.kind}-{self.fingerprint}"

    @property
    def digests(self) -> set[str]:
        return {output["digest"] for output in self.outputs.values()}

    def read(self, digest: str) -> bool:
        """Whether this content is one of its inputs, under whatever name."""
        return any(digest in (one.made, one.digest) for one in (*self.inputs.values(), *self.files.values()))


@dataclass
class Lineage:
    """What a folder knows of itself."""

    output: str  # the port that the folder is; "": a whole result
    digest: str  # of the folder's content; "" for a whole result
    records: list[Record]  # the first made it, the others came before, in no particular order

    @property
    def own(self) -> Record:
        return self.records[0]

    def maker(self, origin: Origin) -> Record | None:
        """The record of the result that an input is an output of; None: it came from outside, or is not known.

        A result may have copied what it read, bytes and all (a base model taken from a folder): such a one has made
        nothing, and is only meant where the recipe's fingerprint says so.
        """
        wanted = origin.made or origin.digest
        found = [record for record in self.records if wanted in record.digests]
        same = [record for record in found if record.fingerprint == origin.fingerprint]
        made = [record for record in found if not record.read(wanted)]
        return next(iter(same or made), None)

    def port(self, origin: Origin) -> str:
        """Which output of its maker an input is; "" where that is not known."""
        wanted, maker = origin.made or origin.digest, self.maker(origin)
        ports = [port for port, output in maker.outputs.items() if output["digest"] == wanted] if maker else []
        said = origin.wired.rpartition(".")[2]
        return said if said in ports else next(iter(ports), "")


def write_lineage(
    folder: Path, manifest: dict[str, Any], planned: PlannedStage, inputs: dict[str, Artifact], digests: Digests
) -> None:
    """Put `lineage.json` into the outputs of an unsealed result. Metrics carry none: nobody takes them elsewhere, and
    `datasets.load_dataset` would read it as data beside a results.jsonl."""
    before: list[Record] = []
    origins = {}
    for port, artifact in inputs.items():
        origin = Origin(planned.inputs[port].wired, artifact.fingerprint, artifact.digest)
        origins[port] = _joined(origin, artifact.path, before)
    files = {
        key: _joined(Origin(str(path), "", digests.of(path)), path, before) for key, path in local_files(planned.cfg)
    }
    own = Record(**{name: manifest[name] for name in SHARED}, config=plain(planned.cfg), inputs=origins, files=files)
    for port, output in own.outputs.items():
        if output["kind"] != "metrics":
            save(folder / port, Lineage(port, output["digest"], _unique([own, *before])))


def save(folder: Path, lineage: Lineage) -> None:
    """Into a folder that nobody reads yet: it is not sealed."""
    (folder / LINEAGE).write_text(as_json(lineage) + "\n")


def as_json(lineage: Lineage) -> str:
    """One record a line."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(record)) for record in lineage.records)
    head = f'"output": {json.dumps(lineage.output)}, "digest": {json.dumps(lineage.digest)}'
    return f'{{{head}, "records": [\n{lines}\n]}}'


def lineage_of(path: Path) -> Lineage | None:
    """What a folder knows: an output, wherever it lies, or a whole result in a store. None: nothing."""
    if (path / LINEAGE).exists():
        return _load(path / LINEAGE)
    if (path / MANIFEST).exists():
        return _of_result(path)
    whole, name = path.resolve().parent, path.resolve().name
    if not (whole / MANIFEST).exists():
        return None
    records = _records(whole, {})
    port = next((port for port, output in records[0].outputs.items() if output["path"] == name), None)
    return None if port is None else Lineage(port, records[0].outputs[port]["digest"], records)


def local_files(config: Any, prefix: str = "") -> list[tuple[str, Path]]:
    """(key, path) of what a stage's config names on this machine: the fields that count by their content."""
    found: list[tuple[str, Path]] = []
    for item in dataclasses.fields(config):
        value, key = getattr(config, item.name), f"{prefix}{item.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, StageConfig):
            found += local_files(value, f"{key}.")
        elif "content" in item.metadata and isinstance(value, str) and os.access(Path(value).expanduser(), os.R_OK):
            found.append((key, Path(value).expanduser()))
    return found


def _joined(origin: Origin, path: Path, before: list[Record]) -> Origin:
    """Add to `before` what the folder at `path` knows of itself."""
    lineage = lineage_of(path)
    if lineage is not None:
        before += lineage.records
        made = lineage.own.outputs[lineage.output]["digest"] if lineage.output else ""
        origin.made = made if made != origin.digest else ""
    return origin


def _unique(records: list[Record]) -> list[Record]:
    found: dict[tuple[str, frozenset[str]], Record] = {}
    for record in records:
        found.setdefault((record.name, frozenset(record.digests)), record)
    return list(found.values())


def _load(file: Path) -> Lineage:
    known = json.loads(file.read_text())
    records = []
    for fields in known["records"]:
        for group in ("inputs", "files"):
            fields[group] = {port: Origin(**origin) for port, origin in fields[group].items()}
        records.append(Record(**fields))
    return Lineage(known["output"], known["digest"], records)


def _of_result(folder: Path) -> Lineage:
    carried = sorted(folder.glob(f"*/{LINEAGE}"))
    records = _load(carried[0]).records if carried else _records(folder.resolve(), {})
    return Lineage("", "", records)


def _records(folder: Path, seen: dict[Path, list[Record]]) -> list[Record]:
    """A result of a store and all before it, from manifests and configs; what left the store is not known."""
    if folder not in seen:
        seen[folder] = []  # a circle cannot be, and would end here
        manifest = json.loads((folder / MANIFEST).read_text())
        config = read_yaml(path) if (path := folder / "config.yaml").exists() else {}
        own = Record(**{name: manifest.get(name) for name in SHARED}, config=config)
        before: list[Record] = []
        for port, source in manifest["inputs"].items():
            wired = (config.get("inputs") or {}).get(port) or ""
            own.inputs[port] = origin = Origin(wired, source["fingerprint"], source["digest"])
            if (made := _entry_of(origin, folder)) is not None:
                before += _records(made, seen)
            elif wired.startswith("path:"):
                _joined(origin, Path(wired.removeprefix("path:")).expanduser(), before)
        seen[folder] = _unique([own, *before])
    return seen[folder]


def _entry_of(origin: Origin, reader: Path) -> Path | None:
    """The result in the reader's store that an input came from; a replaced one stands under .old."""
    store = reader.parent.parent if reader.parent.name == ".old" else reader.parent
    name = origin.fingerprint
    for manifest in [*store.glob(f"*-{name}/{MANIFEST}"), *store.glob(f".old/*-{name}.*/{MANIFEST}")]:
        if any(output["digest"] == origin.digest for output in json.loads(manifest.read_text())["outputs"].values()):
            return manifest.parent
    return None
