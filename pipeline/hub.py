"""Names on the hub, pinned: what a name without a commit means is asked once, and remembered in the store.

    store/hub-revisions.json     {"model org/name": COMMIT, "dataset org/name@branch": COMMIT}

A branch or a tag is a name too: it may mean another model tomorrow. From the first plan on, every run on this store
takes the commit that was remembered; to follow the hub again, remove its line or write the revision. A dry run asks
and remembers nothing.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.artifacts import Fault
from pipeline.store import write_json

NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")  # the hub takes no shorter one
SECONDS = 10.0  # to wait for an answer


@dataclass(frozen=True)
class Repository:
    """What is asked for: `revision` is a commit, a branch or a tag; None means the default branch."""

    kind: str  # model | dataset
    name: str
    revision: str | None = None

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}{f'@{self.revision}' if self.revision else ''}"


@dataclass
class Revisions:
    """Commits of names, as remembered in a store. `remember` is false for a dry run, which writes nothing."""

    file: Path
    remember: bool
    notes: list[str] = field(default_factory=list)  # what was found out just now, for people

    @classmethod
    def of_store(cls, store: Path, remember: bool) -> Revisions:
        return cls(store / "hub-revisions.json", remember)

    def of(self, wanted: Repository) -> str | Fault:
        """The commit of a repository, or why it cannot be told (`key` is left for the caller)."""
        if wanted.revision and COMMIT.fullmatch(wanted.revision):
            return wanted.revision
        if known := self._known().get(wanted.key):
            return known
        found = ask(wanted)
        if isinstance(found, Fault):
            return found
        if self.remember:
            found = self._keep(wanted.key, found)
            note = f"{wanted.key} is {found} on the hub, which this store remembers ({self.file})"
        else:
            note = f"{wanted.key} is {found} on the hub today; the first run remembers it"
        self.notes += [note] if note not in self.notes else []
        return found

    def _known(self) -> dict[str, str]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def _keep(self, key: str, commit: str) -> str:
        """Whoever comes first decides, so that two runs that begin together agree."""
        (self.file.parent / ".locks").mkdir(parents=True, exist_ok=True)
        with (self.file.parent / ".locks" / self.file.stem).open("a") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
            known = self._known()
            if key not in known:
                known[key] = commit
                write_json(self.file, known)
            return known[key]


@functools.cache
def ask(wanted: Repository) -> str | Fault:
    """The commit that a name means on the hub now (HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE count), asked once a
    process."""
    from huggingface_hub import HfApi  # half a second, which only an unpinned name costs
    from huggingface_hub.errors import HFValidationError, HTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi()
    info = api.model_info if wanted.kind == "model" else api.dataset_info
    try:
        return str(info(wanted.name, revision=wanted.revision, timeout=SECONDS).sha)
    except RepositoryNotFoundError:
        problem = f"the hub has no {wanted.kind} '{wanted.name}' for you"
        return Fault("", problem, "name another; a private or gated one needs a login (hf auth login)")
    except RevisionNotFoundError:
        problem = f"{wanted.kind} '{wanted.name}' has no revision '{wanted.revision}'"
        return Fault("", problem, "write a branch, a tag or a commit of 40 digits")
    except HFValidationError:
        return Fault("", f"'{wanted.name}' cannot be a name of the hub", "name a folder, or ORG/NAME")
    except (HTTPError, OSError) as error:  # no network, HF_HUB_OFFLINE, a hub in trouble
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120].rstrip(". ")
        said = f"'{wanted.revision}' of '{wanted.name}'" if wanted.revision else f"'{wanted.name}'"
        problem = f"which commit {said} is cannot be asked now ({reason})"
        download = f"hf download {wanted.name}{' --repo-type dataset' if wanted.kind == 'dataset' else ''}"
        return Fault("", problem, f"write its commit (40 digits), or name a folder: {download} --local-dir FOLDER")


def pin(config: Any, revisions: Revisions) -> tuple[Any, list[Fault]]:
    """The same config with the commit of every name of the hub that has none, and faults where it cannot be told, under
    the key of its `revision`. A name that is a folder here is none of the hub's."""
    changed: dict[str, Any] = {}
    faults = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            inside, more = pin(value, revisions)
            faults += [dataclasses.replace(fault, key=f"{item.name}.{fault.key}") for fault in more]
            changed |= {item.name: inside} if inside is not value else {}
        elif isinstance(value, str) and "hub" in item.metadata and NAME.fullmatch(value) and not Path(value).exists():
            kind, source = item.metadata["hub"]
            found = revisions.of(Repository(kind, value, config.revision)) if config.source == source else None
            if isinstance(found, Fault):
                faults.append(dataclasses.replace(found, key="revision"))
            elif found and found != config.revision:
                changed["revision"] = found
    return (dataclasses.replace(config, **changed) if changed else config), faults
