"""Shell completion: what may follow on a command line of run.py.

    eval "$(python run.py --shell-completion install=bash)"        or install=zsh
    python run.py --shell-completion install=fish | source

Hydra completes groups and keys; here also stages (until=, force=[...], ~stages.), a group of one stage
(engine@stages.general_rl.engine=), sources of input ports, items of lists and sweeps, and paths; for any python that
runs this file. The shell asks with the line so far in COMP_LINE, and gets whole words, one a line.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline import compose
from pipeline.checks import SHARED
from pipeline.config import RunConfig
from pipeline.flags import FLAGS
from pipeline.kinds import kinds
from pipeline.messages import CONF, Refused, root_groups, suggest
from pipeline.shells import SCRIPTS
from pipeline.wiring import EVAL

CHOICES_ONLY = (
    "algorithm",
    "engine",
    "pipeline",
    "scale",
)  # at the root they are chosen; no stage reads a field of them
VALUES = {
    "reuse": ("default", "strict"),
    "gate.on_fail": ("stop", "warn"),
    "evaluation.split": ("test", "dev"),
    "tracker.mode": ("online", "offline"),
}
PATHS = ("path", "name_or_path", "output_dir", "hostfile")

Config = Callable[[], DictConfig]  # composed when somebody looks: it takes a second


def answer(arguments: list[str]) -> int:
    """`--shell-completion install=SHELL | query=SHELL`: print the script, or the candidates; returns the status."""
    verb, _, shell = arguments[0].partition("=") if arguments else ("", "", "")
    if verb not in ("install", "query") or shell not in SCRIPTS:
        said = arguments[0] if arguments else "nothing"
        remedy = suggest(said, [f"install={one}" for one in SCRIPTS])
        print(f"--shell-completion: {said} is no request -> {remedy}", file=sys.stderr)
        return 2
    if verb == "install":
        print(SCRIPTS[shell])
        return 0
    print("\n".join(complete(os.environ.get("COMP_LINE", ""))))
    return 0


def complete(line: str) -> list[str]:
    """Words that the last one of the line may become, sorted. `line` ends at the cursor."""
    before, word = _split(line)
    if word.startswith("-"):
        return _fitting(word, FLAGS) if word.startswith("--") else ["--multirun"]
    config: Config = functools.cache(lambda: _composed(before))
    bare = word.lstrip("+~")
    sign = word.removesuffix(bare)
    key, equals, value = bare.partition("=")
    if equals:
        return _fitting(word, (f"{sign}{key}={one}" for one in _values(key, value, config)))
    if "@" in key:
        return _fitting(word, (f"{sign}{one}" for one in _of_one_stage(key, config)))
    keys = _keys(key, config) if "." in key else _root_keys()
    if sign == "~":  # what is removed has no value
        keys = [one.rstrip(".=") if one.startswith("stages.") else one for one in keys]
    return _fitting(word, (f"{sign}{one}" for one in keys))


def _split(line: str) -> tuple[list[str], str]:
    """Overrides before the last word, and that word; the program itself is left out."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    word = "" if line[-1:].isspace() or not words else words.pop()
    program = next((place for place, one in enumerate(words) if one.endswith("run.py")), -1)
    return words[program + 1 :], word


def _composed(before: list[str]) -> DictConfig:
    """The configuration so far: the first value of every axis, and without what does not compose (yet)."""
    fixed = [re.sub(r"=([^\[{(,]+),.*", r"=\1", one) for one in before if not one.startswith("-")]
    for overrides in (fixed, [one for one in fixed if one.startswith("pipeline=")]):
        try:
            return compose.composed(overrides)[0]
        except Refused:
            continue
    return compose.composed([])[0]


def _fitting(word: str, options: Iterable[str]) -> list[str]:
    return sorted({one for one in options if one.startswith(word)})


def _root_keys() -> list[str]:
    """Groups, fields, and what has fields of its own."""
    groups = set(root_groups())
    fields = {item.name: item.default_factory for item in dataclasses.fields(RunConfig)}
    nodes = {name for name, factory in fields.items() if dataclasses.is_dataclass(factory)} | {"stages", *SHARED}
    values = fields.keys() - nodes - groups
    return [*(f"{one}=" for one in groups | values), *(f"{one}." for one in nodes - set(CHOICES_ONLY))]


def _keys(key: str, config: Config) -> list[str]:
    """One level deeper: `stages.cold_start.` for what has fields, `stages.cold_start.steps=` for what has a value.
    What is the run's own (a stage's ${model}) is set there, so it is left out."""
    parent = key.rpartition(".")[0]
    node = OmegaConf.select(config(), parent)
    if not isinstance(node, DictConfig):
        return []
    children = {str(name): node._get_node(name) for name in node}
    nodes = {name: child for name, child in children.items() if isinstance(child, DictConfig)}
    own = [name for name in children if name not in nodes or not nodes[name]._is_interpolation()]
    return [f"{parent}.{name}{'.' if name in nodes and not nodes[name]._is_none() else '='}" for name in own]


def _of_one_stage(key: str, config: Config) -> list[str]:
    """engine@stages.general_rl.engine=, for every stage that has one."""
    group = key.partition("@")[0]
    return [f"{group}@stages.{name}.{group}=" for name, stage in config().stages.items() if group in stage]


def _values(key: str, value: str, config: Config) -> list[str]:
    """Whole values; of a list or a sweep, what has been written stands before the last item."""
    written = re.match(r".*[\[,]", value)
    start = written[0] if written else ""
    there = start.strip("[").split(",")
    return [f"{start}{one}" for one in _choices(key, value, config) if one not in there]


def _choices(key: str, value: str, config: Config) -> list[str]:
    group, _, package = key.partition("@")
    if (CONF / group).is_dir() and (package or "." not in key):
        return [path.stem for path in (CONF / group).glob("*.yaml")]
    for ending, options in VALUES.items():
        if key == ending or key.endswith(f".{ending}"):
            return list(options)
    if key.rpartition(".")[2] in PATHS:
        return _paths(value)
    if key in ("until", "from_stage", "force"):
        stages = [str(name) for name in config().stages]
        evaluations = [f"{one}{EVAL}" for one in stages if _outputs(config, one, "model")]
        return stages if key == "from_stage" else stages + evaluations
    if ".inputs." in key:
        return _sources(key, config)
    now = OmegaConf.select(config(), key, throw_on_missing=False)
    if isinstance(now, bool):
        return ["true", "false"]
    return [] if now is None or OmegaConf.is_config(now) else [str(now)]


def _sources(key: str, config: Config) -> list[str]:
    """Outputs of the kind that the port takes: stages.NAME.inputs.PORT=."""
    _, name, _, port = key.split(".", 3)
    stages = config().stages
    declared = kinds()[stages[name].kind].inputs.get(port) if name in stages else None
    if declared is None:
        return []
    return [f"{other}.{out}" for other in stages if other != name for out in _outputs(config, other, declared.kind)]


def _outputs(config: Config, stage: Any, kind: str) -> list[str]:
    return [port for port, made in kinds()[config().stages[stage].kind].outputs.items() if made.kind == kind]


def _paths(value: str) -> list[str]:
    written, slash, _ = value.rpartition("/")
    folder = Path(f"{written}{slash}" or ".").expanduser()
    if not folder.is_dir():
        return []
    return [f"{written}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in folder.iterdir()]
