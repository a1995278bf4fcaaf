"""Hydra's and OmegaConf's own faults in our words: they stop at the first one and explain it in their own terms."""

from __future__ import annotations

import re

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import ListConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError, MissingMandatoryValue

from pipeline.artifacts import Fault
from pipeline.messages import CONF, known_keys, suggest, unknown_key

PLUGINS = {  # Hydra's launchers and sweepers that are packages of their own
    "joblib": "hydra-joblib-launcher",
    "optuna": "hydra-optuna-sweeper",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
}


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


def _missing_choice(error: MissingConfigException, overrides: list[str]) -> Fault:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    key = next((item.split("=")[0] for item in overrides if item.endswith(f"={name}")), group or name)
    if group.startswith("hydra/") and name in PLUGINS:
        return Fault(group, f"{name} comes with a package that is not installed", f"run pip install {PLUGINS[name]}")
    theirs = ["basic", *(one for one in PLUGINS if one != "optuna")] if group == "hydra/launcher" else []
    names = [path.stem for path in (CONF / group).glob("*.yaml")] + theirs
    return Fault(key.lstrip("+"), f"there is no {group or 'file'} '{name}'", suggest(name, names))


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
        listed = key == "experiment" or isinstance(OmegaConf.select(known_keys(overrides), key), ListConfig)
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
