"""Where metrics go beside metrics.jsonl: nowhere, or Weights & Biases.

Stages know no tracker. They append to metrics.jsonl in their folder; the driver calls `poll` while it waits and the
tracker sends what is new. A resumed stage repeats lines that were sent before the interruption (the same ones, bar
clock values), so what counts is the number of lines sent, kept on disk beside the tracker's own files.
"""

from __future__ import annotations

import hashlib
import json
import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from pipeline.config import TrackerConfig
from pipeline.report.load import read_rows
from pipeline.store import LINEAGE, MANIFEST

MOST_SAMPLES = 200  # rows of a table
CONNECT_SECONDS = 30.0  # for a server to answer, before going on offline


class PlannedLike(Protocol):
    """What a tracker reads of a planned stage."""

    name: str
    kind: str
    fingerprint: str


class Tracker(Protocol):
    """Told by the runner what happens. Never asks anything, never stops a run."""

    def stage_started(self, planned: PlannedLike, workdir: Path, config: Mapping[str, Any]) -> None: ...

    def poll(self) -> None:
        """Send the metrics that were written since the last call. Cheap; called about once a second."""

    def stage_finished(self, name: str, status: str, metrics: Mapping[str, float], folder: Path | None) -> None:
        """`folder` is what the stage left behind; sealed (it has a manifest) where the stage came to its end."""

    def close(self) -> None: ...


def make_tracker(cfg: TrackerConfig, run_name: str, group: str, output_dir: Path) -> Tracker:
    """The tracker that `cfg.kind` names. `group` is the run's name, or the sweep's for its jobs."""
    if cfg.kind == "wandb":
        return WandbTracker(cfg, run_name, group, Path(output_dir))
    return NoTracker()


class NoTracker:
    """tracker=none."""

    def stage_started(self, planned: PlannedLike, workdir: Path, config: Mapping[str, Any]) -> None: ...

    def poll(self) -> None: ...

    def stage_finished(self, name: str, status: str, metrics: Mapping[str, float], folder: Path | None) -> None: ...

    def close(self) -> None: ...


@dataclass
class Follower:
    """Reads an append-only file of JSON lines that its writer may cut back once (a stage resuming from a checkpoint).

    The folder is held by a descriptor rather than by name: a stage may write its first line and be moved into the
    store between two looks.
    """

    folder: Path
    seen: int = 0  # lines handed out, by this process or one before it
    name: str = "metrics.jsonl"
    _folder: int = -1
    _file: BinaryIO | None = None
    _offset: int = 0  # end of the last whole line that was read
    _last: bytes = b""
    _index: int = 0  # number of lines before _offset

    def __post_init__(self) -> None:
        self._folder = os.open(self.folder, os.O_RDONLY)

    def new_rows(self) -> list[dict[str, Any]]:
        if self._file is None:
            try:
                self._file = os.fdopen(os.open(self.name, os.O_RDONLY, dir_fd=self._folder), "rb")
            except FileNotFoundError:
                return []
        if self._was_cut():
            self._offset, self._last, self._index = 0, b"", 0
        self._file.seek(self._offset)
        rows = []
        for line in self._file:
            if not line.endswith(b"\n"):
                break  # half written
            self._offset += len(line)
            self._last = line
            self._index += 1
            if self._index > self.seen:
                rows.append(json.loads(line))
                self.seen = self._index
        return rows

    def _was_cut(self) -> bool:
        """The line before our position is another one (its clock values differ) or gone."""
        assert self._file is not None
        self._file.seek(self._offset - len(self._last))
        return self._file.read(len(self._last)) != self._last

    def close(self) -> None:
        os.close(self._folder)
        if self._file is not None:
            self._file.close()


@dataclass
class WandbJob:
    """One stage as wandb sees it."""

    run: Any
    follower: Follower
    ledger: Path  # how many lines were sent, for the process that resumes

    def send(self) -> None:
        rows = self.follower.new_rows()
        for row in rows:
            numbers = {key: value for key, value in row.items() if key != "step" and value is not None}
            self.run.log(numbers, step=row["step"])
        if rows:
            self.ledger.write_text(json.dumps({"lines": self.follower.seen}))


@dataclass
class WandbTracker:
    """tracker=wandb: one group a run or sweep, one job a stage. Files live under `<output_dir>/wandb`."""

    cfg: TrackerConfig
    run_name: str
    group: str
    output_dir: Path
    jobs: dict[str, WandbJob] = field(default_factory=dict)
    mode: Any = ""  # online | offline, as wandb has them

    def __post_init__(self) -> None:
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR"):  # else in the home directory
            os.environ.setdefault(name, str(self.output_dir.absolute() / "wandb" / "cache"))
        import wandb

        self.wandb = wandb
        server = wandb.setup().settings.base_url
        self.mode = self.cfg.mode or os.environ.get("WANDB_MODE") or ("online" if has_key(server) else "offline")

    def stage_started(self, planned: PlannedLike, workdir: Path, config: Mapping[str, Any]) -> None:
        folder = self.output_dir.absolute() / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        job_id = wandb_id(self.run_name, planned.name, planned.fingerprint)
        ledger = folder / f"sent-{job_id}.json"
        sent = json.loads(ledger.read_text())["lines"] if ledger.exists() else 0
        run = self._open(
            id=job_id,
            name=f"{self.run_name}/{planned.name}",
            job_type=planned.kind,
            config={**config, "run": self.run_name, "stage": planned.name, "fingerprint": planned.fingerprint},
        )
        self.jobs[planned.name] = WandbJob(run, Follower(workdir, seen=sent), ledger)

    def _open(self, **about: Any) -> Any:
        """Start or continue a wandb run; offline from here on where the server does not answer or refuses the key."""
        try:
            return self._init(**about)
        except self.wandb.errors.Error as error:
            if self.mode == "offline":
                raise
            print(f"wandb: {str(error).splitlines()[0]}; going on offline", flush=True)
            self.mode = "offline"
            return self._init(**{**about, "id": f"{about['id']}-offline"})  # the failed attempt holds the id

    def _init(self, **about: Any) -> Any:
        settings = self.wandb.Settings(
            silent=True,  # it would write over the live display
            console="off",  # stages write to console.log; the driver's screen is not theirs
            disable_git=True,  # the manifest has the commit; a patch of uncommitted files stays here
            disable_code=True,
            init_timeout=CONNECT_SECONDS,
        )
        return self.wandb.init(
            project=self.cfg.project,
            entity=self.cfg.entity,
            group=self.group,
            mode=self.mode,
            dir=str(self.output_dir.absolute()),
            resume="allow",
            reinit="create_new",  # branches of the plan may run beside each other
            settings=settings,
            **about,
        )

    def poll(self) -> None:
        for job in self.jobs.values():
            job.send()

    def stage_finished(self, name: str, status: str, metrics: Mapping[str, float], folder: Path | None) -> None:
        """Cached and skipped stages were never started: there is nothing to finish."""
        job = self.jobs.pop(name, None)
        if job is None:
            return
        job.send()
        job.run.summary.update({"status": status, **{f"final/{key}": value for key, value in metrics.items()}})
        if folder is not None:
            self._samples(job, folder)
            self._artifacts(job, folder)
        self._close(job, exit_code=0 if status in ("ran", "resumed") else 1)

    def _samples(self, job: WandbJob, folder: Path) -> None:
        """The responses that the stage showed, as a table; the latest ones of many."""
        rows = list(read_rows(folder / "samples.jsonl"))[-MOST_SAMPLES:]
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows:
            cells = [[_cell(row.get(name)) for name in names] for row in rows]
            job.run.log({"samples": self.wandb.Table(columns=names, data=cells, allow_mixed_types=True)})

    def _artifacts(self, job: WandbJob, folder: Path) -> None:
        """What the stage made, by reference: weights and data stay where they are. The digests of its inputs are in
        the metadata and the whole lineage goes along, because wandb's own links to inputs need its server."""
        if not (folder / MANIFEST).exists():
            return
        manifest = json.loads((folder / MANIFEST).read_text())
        sealed = folder.resolve()
        for port, output in manifest["outputs"].items():
            about = {key: manifest[key] for key in ("stage", "fingerprint", "inputs")} | output
            artifact = self.wandb.Artifact(f"{manifest['stage']}-{port}", output["kind"].replace(":", "-"), None, about)
            artifact.add_reference((sealed / output["path"]).as_uri(), name=output["path"], checksum=False)
            if (lineage := sealed / output["path"] / LINEAGE).exists():
                artifact.add_file(str(lineage), policy="immutable", skip_cache=True)
            job.run.log_artifact(artifact, aliases=[manifest["fingerprint"]])

    def close(self) -> None:
        """What is still open was interrupted; the same command continues it under the same id."""
        for job in self.jobs.values():
            job.send()
            self._close(job, exit_code=1)
        self.jobs.clear()

    def _close(self, job: WandbJob, exit_code: int) -> None:
        job.follower.close()
        job.run.finish(exit_code=exit_code)


def _cell(value: Any) -> Any:
    """A value as a table takes it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def wandb_id(run_name: str, stage: str, fingerprint: str) -> str:
    """The same for the same stage recipe of the same run, so that resuming continues one wandb run."""
    return hashlib.sha256(f"{run_name}\n{stage}\n{fingerprint}".encode()).hexdigest()[:16]


def has_key(server: str) -> bool:
    """Whether wandb would find credentials for `server` without asking: in the environment or in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not path.exists():
        return False
    hosts = {urlsplit(server).netloc}
    if server.endswith((".coreweave.com", ".wandb.ai")):
        hosts.add("api.wandb.ai")  # one service under an old and a new name; keys stand under either
    try:
        known = netrc.netrc(path).hosts
    except netrc.NetrcParseError:
        return False
    return bool(hosts & set(known))
