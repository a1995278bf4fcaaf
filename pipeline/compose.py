"""From the command line to a typed `RunConfig`: Hydra composes once, and no code after this file sees a DictConfig.

Where Hydra has a part in running jobs, `hydra.main` composes and run.py calls `typed`; all else calls `compose`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from pipeline.artifacts import Fault
from pipeline.config import RunConfig
from pipeline.kinds import kinds
from pipeline.manual import choices
from pipeline.messages import CONF, Refused, unreachable
from pipeline.overrides import added, merged, shared, unreadable
from pipeline.reword import reword
from pipeline.store import read_yaml
from stages.base_model.config import ModelConfig
from stages.parts.data.config import DataConfig

LONGEST_FOLDER = 200  # characters; file systems allow 255 bytes


def register_schemas() -> None:
    """The types behind the YAML: the root, and one schema a kind of stage (`<kind>_schema`)."""
    root = RunConfig(model=ModelConfig(), student=ModelConfig(), data=DataConfig(), general_data=DataConfig())
    store = ConfigStore.instance()
    store.store(name="run_schema", node=open_dicts(OmegaConf.structured(root)))
    for name, kind in kinds().items():
        store.store(name=f"{name}_schema", node=open_dicts(OmegaConf.structured(kind.config)))
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)
    OmegaConf.register_new_resolver("manual", choices, replace=True)
    OmegaConf.register_new_resolver("pinned", pinned, replace=True)
    OmegaConf.register_new_resolver("as_model", as_model, replace=True)


def open_dicts(schema: DictConfig) -> DictConfig:
    """Let dicts whose keys are the user's own (columns, suites, inputs, ...) be added to without a +; the plan knows
    which keys mean something there. Stages, scales and a launcher's options stay closed: nothing would miss a misspelt
    one."""
    for name in schema:
        node = schema._get_node(name)
        if not isinstance(node, DictConfig) or node._is_none() or node._is_missing() or node._is_interpolation():
            continue
        if OmegaConf.get_type(node) is not dict:
            open_dicts(node)
        elif name not in ("stages", "scale", "options"):
            OmegaConf.set_struct(node, False)
    return schema


def compose(overrides: list[str]) -> RunConfig:
    """The configuration that `python run.py OVERRIDES` would run. Raises Refused."""
    return typed(*composed(overrides), overrides)


def composed(overrides: list[str]) -> tuple[DictConfig, dict[str, Any]]:
    """What Hydra makes of the overrides, not typed yet, and the choice of every group. Raises Refused."""
    if faults := [fault for override in overrides if (fault := unreadable(override))]:
        raise Refused(faults)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name="run"):
            config = hydra_compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise Refused([reword(error, overrides)]) from error
    HydraConfig.instance().set_config(config)  # for ${hydra:...} in a YAML
    choices = dict(config.hydra.runtime.choices)
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]
    return config, choices


def typed(config: DictConfig, choices: dict[str, Any], overrides: list[str]) -> RunConfig:
    """Dataclasses instead of a DictConfig, every interpolation resolved. Raises Refused."""
    faults = [fault for override in overrides if (fault := unreachable(override) or shared(override, config))]
    if faults:
        raise Refused(faults)
    try:
        cfg: RunConfig = OmegaConf.to_object(config)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise Refused([reword(error, overrides)]) from error
    if faults := list(mistyped_lists(config)):
        raise Refused(faults)
    if faults := [
        fault for override in overrides if (fault := added(override, cfg, overrides) or merged(override, cfg))
    ]:
        raise Refused(faults)
    cfg.pipeline = choices["pipeline"]
    cfg.name = cfg.name or default_name(choices["pipeline"], overrides)
    return cfg


def mistyped_lists(node: DictConfig) -> Iterator[Fault]:
    """OmegaConf checks no type where a list comes by interpolation, as evaluation.ks does from the scale."""
    for name in node:
        child = node._get_node(name)
        if isinstance(child, DictConfig) and not child._is_interpolation() and not child._is_none():
            yield from mistyped_lists(child)
        elif isinstance(child, ListConfig) and child._is_interpolation():
            found, items = child._maybe_dereference_node(), child._metadata.element_type
            if isinstance(found, ListConfig) and all(_fits(item, items) for item in found):
                continue
            example = {int: "[1, 8]", str: "[NAME]"}.get(items, "[...]")
            key, reader = str(child._value()).strip("${}"), child._get_full_key(None)
            yield Fault(key, f"'{found}' is not a list as {reader} needs it", f"write {key}={example}")


def _fits(item: Any, kind: Any) -> bool:
    """A whole number is a number too."""
    return kind is Any or isinstance(item, (int, float) if kind is float else kind)


def default_name(pipeline: str, overrides: list[str]) -> str:
    """`<pipeline>` or `<pipeline>-<experiment>`; several experiments are joined with a plus."""
    chosen = _experiments(overrides)
    return f"{pipeline}-{'+'.join(chosen)}".replace("/", "_") if chosen else pipeline


def _experiments(overrides: list[str]) -> list[str]:
    """Hydra tells a list of choices only in the overrides."""
    values = [item.partition("=")[2] for item in overrides if item.startswith("experiment=")]
    names = values[-1].strip("[] ").split(",") if values else []
    return [name.strip() for name in names if name.strip() not in ("", "null")]


def pinned(group: str, name: str | None, field: str) -> Any:
    """What the YAML of `group` (conf/data, conf/model) says in `field` that has this name of the hub; else nothing, for
    the plan to find out."""
    nothing: dict[str, Any] = {"facts": {}}
    files = sorted((CONF / group).glob("*.yaml")) if name else []
    for known in (read_yaml(file) for file in files):
        if name in (known.get("name"), known.get("name_or_path")):
            return known.get(field, nothing.get(field))
    return nothing.get(field)


def as_model(name: str | None, field: str, *, _root_: DictConfig) -> Any:
    """A field of the root's `model` for a student of the same name; another student has its own."""
    if _root_.model.name_or_path == name:
        return _root_.model[field]
    return False if field == "trust_remote_code" else pinned("model", name, field)


def job_folder(identity: str) -> str:
    """The folder of a sweep's job: the values of its axes, or a hash where they do not make a file name."""
    if not identity:
        return "default"
    if "/" in identity or len(identity) > LONGEST_FOLDER:
        return "overrides-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    return identity


register_schemas()  # on import, because a launcher's worker process imports this module and calls nothing of it
