"""Refusals: one short line a fault, `key: what is wrong -> what to write`, never a traceback.

Hydra and OmegaConf stop at their own first fault and explain it in their own terms; `reword` turns that into one of
ours, with the nearest name that exists.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, MissingMandatoryValue

from pipeline.artifacts import Fault

CONF = Path(__file__).resolve().parent.parent / "conf"

PLUGINS = {  # Hydra's launchers and sweepers that are packages of their own
    "joblib": "hydra-joblib-launcher",
    "optuna": "hydra-optuna-sweeper",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
}
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


def reword(error: Exception, overrides: list[str]) -> Fault:
    """Hydra's or OmegaConf's first fault in our words."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_choice(error, overrides)
    if isinstance(error, OverrideParseException):
        problem = "cannot be read"
        return Fault(
            error.override or "override", problem, "write KEY=VALUE; quote what has spaces, commas or brackets"
        )
    if isinstance(error, HydraException):
        return _composition(error, overrides)
    key = getattr(error, "full_key", None) or "config"
    if re.match(r"Key '\S+' (is )?not in", str(error)):
        return unknown_key(key, overrides)
    if isinstance(error, MissingMandatoryValue) or "missing mandatory value" in str(error).lower():
        return _missing_value(error, key)
    if match := re.match(r"While dereferencing interpolation '\$\{([\w.]+)\}': (.*)", _first_line(error)):
        value = re.search(r"Value '(.*)' of type", match[2])  # the fault is where it was set, not where it is read
        return Fault(match[1], *_wrong_type(match[2], match[1], value[1] if value else ""))
    if match := re.search(r"node `([\w.]+)` is not a container", str(error)):
        return Fault(match[1], "consists of fields", f"write {match[1]}.FIELD=VALUE")
    if isinstance(error, InterpolationKeyError | InterpolationResolutionError):
        return Fault(key, _first_line(error), "give the key that it refers to a value")
    return Fault(key, _first_line(error), "write a value of that type")


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


def _missing_choice(error: MissingConfigException, overrides: list[str]) -> Fault:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    key = next((item.split("=")[0] for item in overrides if item.endswith(f"={name}")), group or name)
    if group.startswith("hydra/") and name in PLUGINS:
        return Fault(group, f"{name} comes with a package that is not installed", f"run pip install {PLUGINS[name]}")
    return Fault(
        key.lstrip("+"),
        f"there is no {group or 'file'} '{name}'",
        suggest(name, [path.stem for path in (CONF / group).glob("*.yaml")]),
    )


def _missing_value(error: Exception, key: str) -> Fault:
    if (match := re.search(r"type `(\w+)` has missing mandatory value: (\w+)", str(error))) and match[2] == "kind":
        return Fault(key, "this stage has settings but is no stage of the pipeline", "leave it out, or name another")
    name = match[2] if match else key.rsplit(".", 1)[-1]
    full = key if key.endswith(name) else f"{key}.{name}".removeprefix("config.")
    return Fault(full, "has no value", f"write {full}=...")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _composition(error: HydraException, overrides: list[str]) -> Fault:
    text = str(error)
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        key, _, values = match[1].partition("=")
        listed = key == "experiment" or isinstance(OmegaConf.select(_known_keys(overrides), key), ListConfig)
        as_list = f"; a list is written {key}=[{values}]" if listed else ""
        return Fault(key, f"has several values: {values}", f"add -m to sweep over them{as_list}")
    if match := re.search(r"Could not override '([^']+)'", text):
        inside = getattr(error.__cause__, "full_key", None) or ""  # of evaluation={samplez: 3}
        return unknown_key(inside if inside.startswith(f"{match[1]}.") else match[1], overrides)
    if match := re.search(r"Could not delete from config. '([^']+)' does not exist", text):
        return unknown_key(match[1], overrides)
    if match := re.search(r"Error merging override (.+)", text):
        key, _, value = match[1].partition("=")
        cause = _first_line(error.__cause__) if error.__cause__ else _first_line(error)
        if (
            "not in struct" in cause
            or "not a subclass of StageConfig" in cause
            or re.search(r"Key '\S+' not in", cause)
        ):
            return unknown_key(key.lstrip("+"), overrides)
        return Fault(key, *_wrong_type(cause, key, value))
    if match := re.search(r"Could not delete '([^']+)'. No match", text):
        return Fault(f"~{match[1]}", "is not chosen", "leave it out")
    if match := re.search(r"Could not append to config. An item is already at '([^']+)'", text):
        return Fault(match[1], "is there already", f"leave the + out: {match[1]}=...")
    if "Error resolving interpolation" in text and (new := [item for item in overrides if item.startswith("+stage@")]):
        return Fault(new[0].partition("=")[0], "adds a stage, which only a recipe can", "write it into conf/pipeline")
    if match := re.search(r"Multiple values for (\S+?)\.", text):
        return Fault(match[1], "is chosen already", f"leave the + out: {match[1]}=NAME")
    if match := re.search(r"Override (\S+?)=\S* looks like a config group", text):
        return unknown_key(match[1], overrides)
    if "ConfigKeyError raised while composing" in text and (chosen := _other_kind(text, overrides)):
        return chosen
    return Fault("config", _first_line(error), "see python run.py --help")


def _other_kind(text: str, overrides: list[str]) -> Fault | None:
    """`stage@stages.base=sft`: the recipe sets fields of the stage that the other kind does not have."""
    key = re.search(r"full_key: (\S+)", text)
    name = key[1].split(".")[1] if key and key[1].startswith("stages.") else ""
    chosen = next((item for item in overrides if item.startswith(f"stage@stages.{name}=")), None)
    if chosen is None:
        suites = [item for item in overrides if item.startswith("+suite=")]
        return Fault("+suite", "is chosen by a recipe", "write it into conf/pipeline") if suites else None
    written, _, kind = chosen.partition("=")
    problem = f"the recipe gives {name} a field that {kind} does not have: {key[1].split('.', 2)[2] if key else ''}"
    return Fault(
        written, problem, "choose a kind with the same fields, or write a recipe of your own into conf/pipeline"
    )


def _wrong_type(cause: str, key: str, value: str) -> tuple[str, str]:
    """The problem, and what to write instead."""
    names = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
    remedy = "write a value of that type"
    if match := re.search(r"could not be converted to (\w+)", cause):
        return f"'{value}' is not {names.get(match[1], match[1])}", remedy
    if "not a valid bool" in cause:
        return f"'{value}' is not true or false", remedy
    if "is not a ListConfig" in cause:
        return f"'{value}' is not a list", f"write {key}=[{value}]"
    if re.search(r"Cannot assign \w+ to Dict", cause):
        return f"'{value}' is not a mapping", f"write {key}.NAME=VALUE"
    if match := re.search(r"(?:str|int|float|bool) is not a subclass of (\w+)", cause):
        group = key.rpartition(".")[2]
        choose = f"write {group}@{key}={value}" if (CONF / group).is_dir() else f"write its fields, {key}.FIELD=..."
        return f"'{value}' is not what {key} consists of", choose
    if "Cannot merge DictConfig with ListConfig" in cause and value.startswith("["):
        return f"'{value}' is not a mapping", f"write {key}.NAME=VALUE"
    if "Cannot merge DictConfig with ListConfig" in cause:
        return f"'{value}' is not a list", f"write {key}=[ITEM, ...]"
    if re.search(r"Cannot convert '\w+' to string", cause):
        return f"'{value}' is not one value", f"write {key}={value.strip('[]{}')}"
    if "does not support deletion" in cause:
        return "cannot be left out, as fields have to have a value", f"write {key.lstrip('~')}=VALUE for another"
    if "is not Optional" in cause or "Incompatible value 'None'" in cause:
        return "cannot be null", "give it a value, or leave it out"
    return cause, remedy


def unknown_key(key: str, overrides: list[str]) -> Fault:
    """A key or group that does not exist, with the nearest that does."""
    if "@" in key:
        return _unknown_package(key, overrides)
    if fault := unreachable(key):
        return fault
    known = _known_keys(overrides)
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
    known = _known_keys(overrides)
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


def _known_keys(overrides: list[str]) -> DictConfig:
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
