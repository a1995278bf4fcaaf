"""Values that cannot be right: each is refused under the key that a user would write."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan


@cache
def smoke() -> RunConfig:
    return compose(["experiment=smoke"])


def put(node: Any, key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        node = node[part] if isinstance(node, dict) else getattr(node, part)
    setattr(node, last, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("evaluation.seed", -1),
        ("name", "../elsewhere"),
        ("name", ".hidden"),
        ("stages.cold_start.save_every_steps", 0),
        ("stages.cold_start.gate.on_fail", "halt"),
        ("stages.cold_start.dtype", "float7"),
        ("stages.cold_start.lora.rank", -1),
        ("stages.cold_start.learning_rate", float("nan")),
        ("stages.cold_start.optimizer.beta2", 1.0),
        ("stages.cold_start.few_shot_sampling.top_p", 0.0),
        ("stages.rejection_sampling.temperature", float("nan")),
    ],
)
def test_a_value_that_cannot_be_right(key: str, value: Any, tmp_path: Path) -> None:
    cfg = copy.deepcopy(smoke())
    cfg.output_dir = str(tmp_path)
    put(cfg, key, value)
    with pytest.raises(Refused) as caught:
        make_plan(cfg)
    assert [fault.key for fault in caught.value.faults] == [key]


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("data.path", "problems.jsonl", "write data=jsonl"),
        ("general_data.path", "problems.jsonl", "write data@general_data=jsonl"),
        ("data.name", "org/name", "write data=hub"),
        ("model.name_or_path", "org/name", "write model=hf"),
        ("student.name_or_path", "org/name", "write student=hf"),
    ],
)
def test_a_source_that_the_choice_does_not_read(field: str, value: str, remedy: str, tmp_path: Path) -> None:
    """Without it `data.path=mine.jsonl` alone would train on the embedded problems."""
    with pytest.raises(Refused) as caught:
        make_plan(compose(["experiment=smoke", f"{field}={value}", f"output_dir={tmp_path}"]))
    (fault,) = caught.value.faults
    assert fault.key == field and fault.remedy.startswith(remedy)
