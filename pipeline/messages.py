"""Refusals: one short line a fault, `key: what is wrong -> what to write`, with the nearest name that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from pipeline.artifacts import Fault

CONF = Path(__file__).resolve().parent.parent / "conf"

# What articles and other frameworks call our knobs.
SYNONYMS = {
    "num_generations": "G",
    "group_size": "G",
    "kl_coef": "beta",
    "kl_coeff": "beta",
    "kl_loss_coef": "beta",
    "clip_range": "epsilon",
    "cliprange": "epsilon",
    "clip_ratio": "epsilon",
    "clip_ratio_high": "epsilon_high",
    "clip_eps": "epsilon",
    "max_new_tokens": "max_response_tokens",
    "max_completion_length": "max_response_tokens",
    "lr": "learning_rate",
    "max_steps": "steps",
    "batch_size": "prompts_per_step",
    "train_batch_size": "prompts_per_step",
    "micro_batch_size": "tokens_per_microbatch",
    "run_name": "name",
}
RESUME = ("resume", "resume_from", "resume_from_checkpoint", "resume_path", "auto_resume")  # happens without a key


class Refused(Exception):
    """The command cannot be right. Nothing was run."""

    def __init__(self, faults: list[Fault]):
        self.faults = faults
        super().__init__("\n".join(line(fault) for fault in faults))


def line(fault: Fault) -> str:
    return f"{fault.key}: {fault.problem} -> {fault.remedy}"


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that was probably meant, if one is near."""
    known = sorted(set(options))
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.6)), None)


def suggest(word: str, options: Iterable[str]) -> str:
    """A remedy for a name that does not exist."""
    known = sorted(set(options))
    close = nearest(word, known)
    others = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"write {close} (there are: {others})" if close else f"write one of: {others}"


def root_groups() -> list[str]:
    """The groups that are chosen at the root; kinds and suites are chosen by pipelines."""
    return [path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("hydra", "stage", "suite")]


def unreachable(override: str) -> Fault | None:
    """`engine.zero_stage=2` would set the root's copy, which no stage reads: each has its own. `general_data=jsonl`
    would set a name where a whole source is read."""
    key, _, value = override.lstrip("+~").partition("=")
    group, _, field = key.partition(".")
    if key == "general_data":
        return Fault(
            key,
            f"'{value}' is to be a choice of data",
            f"write data@general_data={'NAME' if value == 'null' else value}",
        )
    if not field or group not in ("engine", "algorithm"):
        return None
    remedy = f"write it for a stage, stages.NAME.{group}.{field}=..., or choose {group}=NAME for all of them"
    return Fault(key, f"is read by no stage: each has its own {group} settings", remedy)


def unknown_key(key: str, overrides: list[str]) -> Fault:
    """A key or group that does not exist, with the nearest that does."""
    if "@" in key:
        return _unknown_package(key, overrides)
    if fault := unreachable(key):
        return fault
    known = known_keys(overrides)
    parts = key.split(".")
    depth = next((i for i in range(len(parts)) if not _exists(known, parts[: i + 1])), None)
    if depth is None:
        return Fault(key, "cannot be set to that", "write its fields one by one, KEY.FIELD=VALUE")
    parent = OmegaConf.select(known, ".".join(parts[:depth])) if depth else known
    children = [str(child) for child in parent] if isinstance(parent, DictConfig) else []
    children += root_groups() if depth == 0 and len(parts) == 1 else []
    wrong, prefix = parts[depth], ".".join([*parts[:depth], ""])
    if wrong in RESUME:
        remedy = "leave it out: the same command goes on from the last checkpoint (force=[STAGE] computes it anew)"
        return Fault(key, f"there is no key '{wrong}'", remedy)
    if wrong in SYNONYMS:
        return Fault(
            key,
            f"'{wrong}' is unknown",
            f"here it is called {SYNONYMS[wrong]}: {_where(SYNONYMS[wrong], prefix, known)}",
        )
    if depth == 0 and wrong in known.stages:
        out = "~" if any(item.startswith(f"~{key}") for item in overrides) else ""
        field = "" if out or len(parts) > 1 else ".FIELD"
        return Fault(key, f"'{wrong}' is a stage", f"write {out}stages.{key}{field}")
    if wrong == "eval" and depth == 2:
        right = [*(parts[:2] if parts[3:4] == ["gate"] else ["evaluation"]), *parts[3:]]
        shown = right if len(parts) > 3 and _exists(known, right) else ["evaluation", "FIELD"]
        problem = "an evaluation has no settings of its own: the root's are for all of them"
        return Fault(key, problem, f"write {'.'.join(shown)}")
    if having := [name for name in known.stages if len(parts) == 1 and wrong in known.stages[name]]:
        remedy = f"write stages.NAME.{wrong}=..., of {', '.join(map(str, having))}"
        return Fault(key, "is a field of a stage, not of the run", remedy)
    what = "stage" if prefix == "stages." else "key"
    close = nearest(wrong, children)
    rest = ".".join(parts[depth + 1 :])
    if close:
        out = "~" if f"~{key}" in overrides else ""
        return Fault(key, f"there is no {what} '{wrong}'", f"write {out}{prefix}{close}{'.' + rest if rest else ''}")
    return Fault(
        key, f"there is no {what} '{wrong}'", suggest(wrong, children) if children else "see python run.py --help"
    )


def _where(ours: str, prefix: str, known: DictConfig) -> str:
    """How to write our name for a synonym that stood at `prefix`."""
    for candidate in (f"{prefix}{ours}", f"{prefix}algorithm.{ours}", ours):
        if _exists(known, candidate.split(".")):
            return f"{candidate}=..."
    return f"stages.NAME.{ours}=..."


def _unknown_package(key: str, overrides: list[str]) -> Fault:
    group, _, package = key.partition("@")
    known = known_keys(overrides)
    stages = [str(name) for name in known.stages]
    parts = package.split(".")
    if not (CONF / group).is_dir():
        close = nearest(group, root_groups())
        right = ".".join(close if close and part == group else part for part in parts)  # its field is called like it
        remedy = f"write {close}@{right}=..." if close else suggest(group, root_groups())
        return Fault(key, f"there is no group '{group}'", remedy)
    if len(parts) > 1 and parts[0] == "stages" and parts[1] not in stages:
        close = nearest(parts[1], stages)
        remedy = f"write {group}@stages.{close}.{group}=..." if close else suggest(parts[1], stages)
        return Fault(key, f"there is no stage '{parts[1]}'", remedy)
    if len(parts) > 1 and parts[0] == "stages" and group in known.stages[parts[1]]:
        return Fault(key, f"is not where {parts[1]} has its {group}", f"write {group}@stages.{parts[1]}.{group}=...")
    return Fault(key, f"has no {group} to choose", f"write {group}@stages.NAME.{group}=..., for a stage that has one")


def _exists(known: DictConfig, parts: list[str]) -> bool:
    node: object = known
    for part in parts:
        if not isinstance(node, DictConfig) or part not in set(
            node.keys()
        ):  # `in` would leave out what has no value yet
            return False
        node = node._get_node(part)
        if isinstance(node, DictConfig) and node._is_interpolation():
            node = node._maybe_dereference_node()
    return True


def known_keys(overrides: list[str]) -> DictConfig:
    """The configuration without the faulty overrides: the pipeline that was asked for, or the default one."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    state = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    pipelines = [item for item in overrides if re.fullmatch(r"pipeline=\w+", item)]
    chosen = [item for item in pipelines if (CONF / "pipeline" / f"{item.partition('=')[2]}.yaml").exists()]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name="run"):
        known = compose("config", overrides=chosen)
    GlobalHydra.instance().hydra = state
    return known
