"""What a result is known by: a hash of everything that may change it, and of nothing else.

In: the kind and its RECIPE_VERSION, the seed, the resolved config, the fingerprints of the inputs. Out: fields marked
`not_in_fingerprint` (engine, ranks, micro-batch, intervals, gates, ...), the names of stages, and how ports are wired.
A field that names a local file counts by its content, so moving the file changes nothing. Fields that a stage calls
redundant (a clip range that no ratio can reach, say) are out too: recipes that differ in these alone are one result.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.config import StageConfig
from pipeline.kinds import Kind
from pipeline.plan_types import Source
from pipeline.sources import Digests

LENGTH = 16  # hexadecimal digits


def fingerprint(
    kind: Kind, cfg: StageConfig, inputs: dict[str, Source], digests: Digests, redundant: Iterable[str] = ()
) -> str:
    """The name of a recipe. `redundant`: keys (with dots) whose values cannot change the result of this one."""
    config = recipe(cfg, digests)
    for key in redundant:
        *parents, name = key.split(".")
        functools.reduce(operator.getitem, parents, config).pop(name, None)
    parts = {
        "kind": kind.name,
        "version": kind.recipe_version,
        "config": config,
        "inputs": {port: [source.output, source.fingerprint] for port, source in inputs.items()},
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def recipe(config: Any, digests: Digests) -> Any:
    """The part of a config that decides the result, as JSON."""
    if dataclasses.is_dataclass(config):
        return {item.name: _field(item, getattr(config, item.name), digests) for item in _counting(config.__class__)}
    if isinstance(config, dict):
        return {str(key): recipe(value, digests) for key, value in config.items()}
    if isinstance(config, list):
        return [recipe(value, digests) for value in config]
    return config


@functools.cache
def _counting(kind: type[Any]) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are part of a fingerprint; what a stage is wired to has its own place there."""
    counting = [item for item in dataclasses.fields(kind) if item.metadata.get("fingerprint", True)]
    return [item for item in counting if item.name != "inputs" or not issubclass(kind, StageConfig)]


def _field(item: dataclasses.Field[Any], value: Any, digests: Digests) -> Any:
    if "content" in item.metadata and isinstance(value, str) and os.access(path := Path(value).expanduser(), os.R_OK):
        return {"content": digests.of(path)}
    return recipe(value, digests)
