"""What an override may not say although Hydra takes it; each check returns one fault or None.

`unreadable` goes by its words alone, before Hydra sees them; the others look at what was composed.
"""

from __future__ import annotations

import dataclasses
import re

from omegaconf import DictConfig

from pipeline.artifacts import Fault
from pipeline.config import RunConfig
from pipeline.messages import CONF, unknown_key

FIELDS = {item.name for item in dataclasses.fields(RunConfig)}


def unreadable(override: str) -> Fault | None:
    """What Hydra would die of, or take for something else: an override without a key, a choice that is no name
    (`model=null`, `pipeline=[r1_style]`), a node of the run left out, which would come back with other values."""
    key, _, value = override.lstrip("+~").partition("=")
    group = key.partition("@")[0]
    is_group = (CONF / group).is_dir()
    if not key:
        return Fault(override, "has no key", "write KEY=VALUE")
    if override.startswith("~") and key not in ("stages", "experiment") and (key in FIELDS or (is_group and not value)):
        remedy = f"write {key}=NAME for another" if is_group else "give it another value, or leave this out"
        if group in ("stage", "suite"):
            remedy = f"write ~{key.partition('@')[2] or 'stages.NAME'}"
        return Fault(f"~{key}", "cannot be left out of a run", remedy)
    no_name = r"null|true|false|[-+\d.e]+|\{.*\}|.*/.*" + ("" if group == "experiment" else r"|\[.*\]")
    if not is_group or not re.fullmatch(no_name, value):
        return None
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return Fault(key, f"'{value}' is no choice", f"write one of: {', '.join(names)}; or leave it out")


def added(override: str, cfg: RunConfig, overrides: list[str]) -> Fault | None:
    """A + lets Hydra add any key; one that no code reads is a misspelt one."""
    key = override.lstrip("+").partition("=")[0]
    if not override.startswith("+") or "@" in key or (CONF / key).is_dir():
        return None
    node: object = cfg
    for part in key.split("."):
        names = [item.name for item in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else None
        if isinstance(node, dict):
            node = node.get(part)
        elif names is not None and part in names:
            node = getattr(node, part)
        else:
            return unknown_key(key, overrides)
    return None


def merged(override: str, cfg: RunConfig) -> Fault | None:
    """`stages.general_rl.suites={}` leaves everything as it was: Hydra merges mappings."""
    key, _, value = override.lstrip("+").partition("=")
    if not re.fullmatch(r"\{\s*\}", value):
        return None
    node: object = cfg
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else getattr(node, part, None)
    if not node:
        return None
    names = ", ".join(node) if isinstance(node, dict) else ""
    remedy = f"write ~{key}.NAME for each entry to leave out (there are: {names})" if names else "leave it out"
    return Fault(key, "{} changes nothing: mappings are merged", remedy)


def shared(override: str, config: DictConfig) -> Fault | None:
    """`stages.base.model.hidden_size=64` where the stage has ${model}: Hydra would write it into the root's model,
    which other stages read as well. `config` still has its interpolations."""
    key, equals, value = override.lstrip("+~").partition("=")
    if "@" in key:
        return None  # a choice for that place
    parts = key.split(".")
    node: object = config
    for index, part in enumerate(parts[:-1], start=1):
        node = node._get_node(part) if isinstance(node, DictConfig) else None
        if isinstance(node, DictConfig) and node._is_interpolation():
            root = str(node._value()).strip("${}")
            problem = f"{'.'.join(parts[:index])} is the run's {root}, for every stage that reads it"
            return Fault(key, problem, f"write {'.'.join([root, *parts[index:]])}{equals}{value}")
    return None
