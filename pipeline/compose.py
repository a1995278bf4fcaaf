"""From the command line to a typed `RunConfig`: Hydra composes once, and no code after this file sees a DictConfig.

`compose(overrides)` is the same for scripts and tests; run.py lets `hydra.main` compose and calls `typed`.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from pipeline.artifacts import Fault
from pipeline.config import RunConfig
from pipeline.kinds import kinds
from pipeline.messages import Refused, reword
from stages.base_model.config import ModelConfig
from stages.parts.data.config import DataConfig

CONF = Path(__file__).resolve().parent.parent / "conf"
LONGEST_FOLDER = 200  # characters; file systems allow 255 bytes


def register_schemas() -> None:
    """The types behind the YAML: the root, and one schema a kind of stage (`<kind>_schema` in group `stage`)."""
    root = RunConfig(model=ModelConfig(), student=ModelConfig(), data=DataConfig(), general_data=DataConfig())
    store = ConfigStore.instance()
    store.store(name="run_schema", node=root)
    for name, kind in kinds().items():
        store.store(group="stage", name=f"{name}_schema", node=kind.config)
    OmegaConf.register_new_resolver("sweep_folder", sweep_folder, replace=True)
    OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def compose(overrides: list[str]) -> RunConfig:
    """The configuration that `python run.py OVERRIDES` would run. Raises Refused."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF), job_name="run"):
            config = hydra_compose("config", overrides=overrides, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise Refused([reword(error, overrides)]) from error
    choices = dict(config.hydra.runtime.choices)
    with flag_override(config, ["struct", "readonly"], False):
        del config["hydra"]
    return typed(config, choices, overrides)


def typed(config: DictConfig, choices: dict[str, Any], overrides: list[str]) -> RunConfig:
    """Dataclasses instead of a DictConfig, every interpolation resolved. Raises Refused."""
    faults = [fault for override in overrides if (fault := _unreachable(override))]
    if faults:
        raise Refused(faults)
    try:
        cfg: RunConfig = OmegaConf.to_object(config)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise Refused([reword(error, overrides)]) from error
    cfg.pipeline = choices["pipeline"]
    cfg.name = cfg.name or default_name(choices["pipeline"], choices["experiment"])
    return cfg


def default_name(pipeline: str, experiment: Any) -> str:
    """`<pipeline>` or `<pipeline>-<experiment>`; several experiments are joined with a plus."""
    if not experiment or experiment == "null":
        return pipeline
    names = [experiment] if isinstance(experiment, str) else list(experiment)
    return f"{pipeline}-{'+'.join(name.strip() for name in names)}".replace("/", "_")


def sweep_folder(output_dir: str, name: str, pipeline: str, experiment: Any, dry_run: bool) -> str:
    """Where a sweep lives. A dry run writes nothing there; Hydra insists on a folder, so it gets a scratch one."""
    if dry_run:
        return str(dry_run_folder())
    return str(Path(output_dir) / "sweeps" / (name or default_name(pipeline, experiment)))


def dry_run_folder() -> Path:
    """run.py removes it."""
    return Path(tempfile.gettempdir()) / f"dry_run_{os.getpid()}"


def job_folder(identity: str) -> str:
    """The folder of a sweep's job: its overrides, or a hash where they do not make a file name."""
    if not identity:
        return "default"
    if "/" in identity or len(identity) > LONGEST_FOLDER:
        return "overrides-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    return identity


def _unreachable(override: str) -> Fault | None:
    """`engine.zero_stage=2` would set the root's copy, which no stage reads: each has its own."""
    key = override.lstrip("+~").split("=")[0]
    group, _, field = key.partition(".")
    if not field or group != "engine":
        return None
    remedy = f"write it for a stage, stages.NAME.engine.{field}=..., or choose engine=NAME for all of them"
    return Fault(key, "is read by no stage: each has its own engine settings", remedy)


register_schemas()  # on import, because a launcher's worker process imports this module and calls nothing of it
