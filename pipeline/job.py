"""What the driver hands to the ranks of one stage, as files in the partial folder: they compose nothing themselves.

job.json        stage, config class, inputs, seed, ranks, threads
config.yaml     the resolved config; sealed with the result
result.json     from rank 0: metrics, declared facts, clock
failure-N.json  from rank N: what it died of
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.artifacts import Artifact
from pipeline.config import StageConfig
from pipeline.plan_types import PlannedStage
from pipeline.store import read_yaml, write_json

# Exit statuses of a rank, beside 0 and 1 (any failure).
INTERRUPTED = 75  # a checkpoint was written because a stop was asked for
DISK_FULL = 28  # there was not even room to say why


@dataclass
class Job:
    """One stage to run, the same for all its ranks."""

    stage: str
    kind: str
    config_class: str  # "stages.sft.config:SFTConfig"
    seed: int
    ranks: int
    threads: int
    inputs: dict[str, dict[str, Any]]  # port -> fields of Artifact
    fingerprint: str = ""  # of the recipe that the checkpoints beside this file belong to
    seconds_before: float = 0.0  # spent by earlier, interrupted attempts

    @property
    def package(self) -> str:
        """The kind's folder as a package: "stages.sft"."""
        return self.config_class.split(":")[0].rpartition(".")[0]


def package_of(cfg: StageConfig) -> str:
    return type(cfg).__module__.rpartition(".")[0]


def write_job(folder: Path, planned: PlannedStage, inputs: dict[str, Artifact], seconds_before: float) -> Job:
    """Write job.json and config.yaml into the partial folder."""
    cls = type(planned.cfg)
    job = Job(
        stage=planned.name,
        kind=planned.kind,
        config_class=f"{cls.__module__}:{cls.__qualname__}",
        seed=planned.cfg.seed,
        ranks=planned.ranks,
        threads=planned.threads,
        fingerprint=planned.fingerprint,
        inputs={port: {**dataclasses.asdict(one), "path": absolute(one.path)} for port, one in inputs.items()},
        seconds_before=seconds_before,
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(planned.cfg), sort_keys=False))
    write_json(folder / "job.json", dataclasses.asdict(job))
    return job


def absolute(path: Path) -> str:
    """An input's folder for ranks that may start elsewhere; what lies on the hub has none yet."""
    return str(path) if str(path).startswith("hub:") else str(path.resolve())


def read_job(folder: Path) -> tuple[Job, StageConfig, dict[str, Artifact]]:
    job = Job(**json.loads((folder / "job.json").read_text()))
    module, _, name = job.config_class.partition(":")
    cls = getattr(importlib.import_module(module), name)
    cfg = rebuild(cls, read_yaml(folder / "config.yaml"))
    inputs = {port: Artifact(**{**fields, "path": Path(fields["path"])}) for port, fields in job.inputs.items()}
    return job, cfg, inputs


def plain(value: Any) -> Any:
    """A config as what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def rebuild(hint: Any, value: Any) -> Any:
    """The inverse of `plain`, by type hints. OmegaConf would merge a dict into the class's default instead."""
    if value is None or hint is Any:
        return value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: rebuild(hints[name], item) for name, item in value.items()})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return rebuild(next(one for one in arguments if one is not type(None)), value)
    if origin is list:
        return [rebuild(arguments[0], item) for item in value]
    if origin is dict:
        return {rebuild(arguments[0], key): rebuild(arguments[1], item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum | Path | float):
        return hint(value)
    return value
