"""What comes from outside the pipeline: external inputs of stages, and the content of local files.

    path:DIR                a folder here: an output of a store, or any folder; counts by content
    hub:ORG/NAME@REVISION   a model or data set of the hub; counts by its commit, downloaded before the stage starts
    pip:PACKAGE==VERSION    an installed package with one folder that fits the port; counts by content

Contents are hashed once: digests are remembered by path, size and time, so that a plan over gigabytes takes no time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import FILES, Fault, model_folder_fault
from pipeline.hub import Repository, Revisions
from pipeline.plan_types import Source
from pipeline.store import LINEAGE, MANIFEST, digest_folder, write_json

EXTERNAL = ("path:", "hub:", "pip:")
HUB = re.compile(r"hub:[\w.-]+/[\w.-]+@[\w.-]+")
PIP = re.compile(r"pip:[\w.-]+==[\w.+-]+")


@dataclass
class Digests:
    """Content digests, remembered in the store. A plan only reads the memo; `save` is for real runs."""

    file: Path
    known: dict[str, list[str]] = field(default_factory=dict)  # path -> [state of its files, digest]
    changed: bool = False

    @classmethod
    def of_store(cls, store: Path) -> Digests:
        file = store / ".digests.json"
        try:
            return cls(file, json.loads(file.read_text()))
        except (FileNotFoundError, ValueError):
            return cls(file)  # a memo: what cannot be read is found out again

    def of(self, path: Path) -> str:
        """The digest of a file's or folder's content."""
        state = _state(path)
        known = self.known.get(str(path.resolve()))
        if known and known[0] == state:
            return known[1]
        digest = digest_folder(path) if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        self.known[str(path.resolve())] = [state, digest]
        self.changed = True
        return digest

    def save(self) -> None:
        if self.changed and self.file.parent.is_dir():
            write_json(self.file, self.known)


def _state(path: Path) -> str:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    rows = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:32]


def is_external(wired: str) -> bool:
    return wired.startswith(EXTERNAL)


def external_source(port: str, kind: str, wired: str, digests: Digests, revisions: Revisions) -> Source | Fault:
    """An external input, or what is wrong with it (`key` is left for the caller)."""
    if wired.startswith("hub:"):
        return _from_hub(port, kind, wired, revisions)
    if wired.startswith("pip:"):
        return _from_package(port, kind, wired, digests)
    return _from_folder(port, kind, wired, Path(wired.removeprefix("path:")).expanduser(), digests)


def _from_hub(port: str, kind: str, wired: str, revisions: Revisions) -> Source | Fault:
    """It stays outside until a stage needs it; the commit stands for its content."""
    if not HUB.fullmatch(wired):
        return Fault("", f"'{wired}' names no revision", "write hub:ORG/NAME@COMMIT, so that it stays the same")
    repository = kind.partition(":")[0]
    if repository not in ("model", "dataset"):
        return Fault("", f"the hub has no {kind}", "write STAGE.PORT or path:FOLDER")
    name, _, revision = wired.removeprefix("hub:").partition("@")
    commit = revisions.of(Repository(repository, name, revision))
    if isinstance(commit, Fault):
        return commit
    pinned = f"hub:{name}@{commit}"
    digest = hashlib.sha256(pinned.encode()).hexdigest()
    return Source(port, kind, pinned, fingerprint=digest[:16], path=Path(pinned), digest=digest)


def _from_package(port: str, kind: str, wired: str, digests: Digests) -> Source | Fault:
    """The one folder of an installed package that fits the port; a guess among several would be a guess."""
    if not PIP.fullmatch(wired):
        return Fault("", f"'{wired}' names no version", "write pip:PACKAGE==VERSION")
    name, _, version = wired.removeprefix("pip:").partition("==")
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return Fault("", f"package {name} is not installed", f"run pip install {name}=={version}")
    if package.version != version:
        remedy = f"run pip install {name}=={version}, or write pip:{name}=={package.version}"
        return Fault("", f"{name} {package.version} is installed, not {version}", remedy)
    folders: dict[Path, set[str]] = {}
    for file in package.files or []:
        path = Path(str(package.locate_file(file)))
        folders.setdefault(path.parent, set()).add(path.name)
    fitting = sorted(folder for folder, names in folders.items() if FILES[kind] and names.issuperset(FILES[kind]))
    if len(fitting) != 1:
        which = f" ({', '.join(map(str, fitting[:3]))})" if fitting else ""
        return Fault("", f"{wired} has {len(fitting)} folders that are a {kind}{which}", "write path:FOLDER")
    return _from_folder(port, kind, wired, fitting[0], digests)


def _from_folder(port: str, kind: str, wired: str, path: Path, digests: Digests) -> Source | Fault:
    if not path.is_dir():
        return Fault("", f"there is no folder '{path}'", "write path:FOLDER")
    sealed = _sealed_output(path) or (_copied_output(path, digests) if kind != "model" else None)
    if sealed and sealed["kind"] != kind:
        return Fault("", f"'{path}' is a {sealed['kind']}, not a {kind}", f"name the folder of a {kind}")
    if (path / MANIFEST).exists():
        ports = [p for p, out in json.loads((path / MANIFEST).read_text())["outputs"].items() if out["kind"] == kind]
        return Fault(
            "", f"'{path}' is a whole result", f"name one of its outputs: path:{path / (ports or ['PORT'])[0]}"
        )
    if kind == "model" and (not sealed or sealed.get("adapter")) and (fault := model_folder_fault(path)):
        return fault
    missing = [] if kind == "model" else [name for name in FILES[kind] if not (path / name).exists()]
    if missing:
        problem = f"'{path}' is no {kind}: it has no {', '.join(missing)}"
        return Fault(
            "", problem, f"name a {kind} that a stage made; rows of other forms come by data=jsonl or data=hub"
        )
    facts = {key: value for key, value in (sealed or {}).items() if key not in ("kind", "path", "digest")}
    if kind == "model" and not sealed:
        from stages.base_model.config import folder_facts

        facts = folder_facts(path)
    digest = sealed["digest"] if sealed else digests.of(path)
    return Source(port, kind, wired, digest[:16], path=path, digest=digest, facts={"path": str(path), **facts})


def _copied_output(path: Path, digests: Digests) -> dict[str, Any] | None:
    """What the lineage in a folder that was copied from a result says about it, if the content is still the same."""
    try:
        lineage = json.loads((path / LINEAGE).read_text())
        output: dict[str, Any] = lineage["records"][0]["outputs"][lineage["output"]]
        same = output["digest"] == digests.of(path)
    except (OSError, ValueError, LookupError, TypeError):  # none, or a file of this name that is somebody else's
        return None
    return output if same and "kind" in output else None


def _sealed_output(path: Path) -> dict[str, Any] | None:
    """What the manifest beside an output says about it."""
    manifest = path.resolve().parent / MANIFEST
    if not manifest.exists():
        return None
    outputs = json.loads(manifest.read_text())["outputs"].values()
    return next((output for output in outputs if output["path"] == path.resolve().name), None)
