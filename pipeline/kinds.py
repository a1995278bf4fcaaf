"""The kinds of stages, found by listing `stages/*/config.py`: a new kind is a folder, there is nothing to register.

Only the heads are imported here, so a plan never loads torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.artifacts import ARTIFACT_KINDS, Outline, Port
from pipeline.config import StageConfig

STAGES = Path(__file__).resolve().parent.parent / "stages"


@dataclass(frozen=True)
class Kind:
    """One head: what a stage of this kind reads, makes and is configured by."""

    name: str
    config: type[StageConfig]
    inputs: dict[str, Port]
    outputs: dict[str, Port]
    recipe_version: int
    outline: Callable[[Any, dict[str, dict[str, Any]]], Outline]

    @property
    def model_port(self) -> str | None:
        """The output port that is evaluated after the stage, if it makes a model."""
        return next((port for port, made in self.outputs.items() if made.kind == "model"), None)


@cache
def kinds() -> dict[str, Kind]:
    """Every kind by name, in alphabetical order."""
    names = sorted(path.parent.name for path in STAGES.glob("*/config.py"))
    return {name: _read_head(name, importlib.import_module(f"stages.{name}.config")) for name in names}


def _read_head(name: str, head: ModuleType) -> Kind:
    config = next((value for value in vars(head).values() if _is_config_of(value, name)), None)
    if config is None:
        raise TypeError(f"stages/{name}/config.py has no dataclass that extends StageConfig with kind = '{name}'")
    if missing := [part for part in ("INPUTS", "OUTPUTS", "RECIPE_VERSION", "outline") if not hasattr(head, part)]:
        raise TypeError(f"stages/{name}/config.py has no {', '.join(missing)}")
    for port, declared in {**head.INPUTS, **head.OUTPUTS}.items():
        if declared.kind not in ARTIFACT_KINDS or port == "eval":
            raise TypeError(f"stages/{name}/config.py: port '{port}' of kind '{declared.kind}' is not allowed")
    return Kind(name, config, head.INPUTS, head.OUTPUTS, head.RECIPE_VERSION, head.outline)


def _is_config_of(value: object, name: str) -> bool:
    if not (isinstance(value, type) and is_dataclass(value) and issubclass(value, StageConfig)):
        return False
    kind = next(field for field in fields(value) if field.name == "kind")
    return kind.default is not MISSING and kind.default == name
