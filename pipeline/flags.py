"""The few words with dashes that run.py knows, and what the words of a command ask for before anything is composed;
everything else is KEY=VALUE."""

from __future__ import annotations

import dataclasses
import tomllib

from pipeline.artifacts import Fault
from pipeline.config import RunConfig
from pipeline.messages import RESUME, SYNONYMS, nearest, root_groups
from pipeline.provenance import ROOT

MULTIRUN = ("-m", "--multirun")
FLAGS = (
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "-r", "--run", "--resolve", "-p", "--package"),
    *("-sc", "--shell-completion", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"),
    *("-i", "--info", *MULTIRUN),
)  # ours and Hydra's


def unknown_flag(flag: str) -> Fault | None:
    """A word with dashes that neither we nor Hydra know; argparse would answer with a page of usage."""
    name = flag.partition("=")[0]
    if name in FLAGS:
        return None
    bare = name.lstrip("-").replace("-", "_")
    flags = [one for one in FLAGS if one.startswith("--") and one != "--run"] if name.startswith("--") else []
    keys = [*root_groups(), *(item.name for item in dataclasses.fields(RunConfig))]
    if bare in RESUME:
        remedy = "leave it out: the same command goes on from the last checkpoint"
    elif close := nearest(name, flags):
        remedy = f"write {close}"
    elif close := nearest(SYNONYMS.get(bare, bare), keys):
        remedy = f"settings have no dashes: write {close}=..."
    else:
        remedy = "settings are written KEY=VALUE; see python run.py --help"
    return Fault(name, "is no flag", remedy)


def clashing_flags(arguments: list[str]) -> Fault | None:
    """Hydra raises where two flags want different things, and where there is nothing to print resolved."""
    words = {one.partition("=")[0] for one in arguments}
    if words & {"-r", "--run"} and words & {"-c", "--cfg", "-i", "--info", *MULTIRUN}:
        return Fault("--run", "is what happens anyway", "leave it out")
    if words & set(MULTIRUN) and words & {"-c", "--cfg", "-i", "--info"}:
        return Fault("--cfg", "shows one configuration, and a sweep has many", "leave -m and the axes out")
    if "--resolve" in words and not words & {"-c", "--cfg"}:
        return Fault("--resolve", "prints nothing by itself", "write --cfg job --resolve")
    return None


def asks_hydra(arguments: list[str]) -> bool:
    """Whether Hydra has a part in it beyond composing: one of its flags, launchers, sweepers or settings."""
    return any(
        argument.lstrip("+~").startswith("hydra") or (argument.startswith("-") and argument not in MULTIRUN)
        for argument in arguments
    )


def is_dry(arguments: list[str]) -> bool:
    """With any word that OmegaConf takes for true."""
    words = [item.partition("=")[2].lower() for item in arguments if item.lstrip("+").startswith("dry_run=")]
    return bool(words) and words[-1] in ("true", "yes", "on", "1", "y")


def version() -> str:
    """Of this checkout, `posttrain X.Y.Z`; what is installed may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return f"{project['name']} {project['version']}"
