"""Values that cannot be right: each is refused under the key that a user would write."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.axes import check_axes
from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan

GSM8K = "tests/data/gsm8k_sample.jsonl"


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


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.subset=main"], "data.subset does nothing: source=reasoning_gym does not read it"),
        (["data.columns={prompt: q}"], "data.columns does nothing: source=reasoning_gym does not read it"),
        (["data=jsonl", f"data.path={GSM8K}", "data.difficulty=3"], "data.difficulty does nothing: source=jsonl "),
        (["data=jsonl", f"data.path={GSM8K}", "data.split=test"], "data.split does nothing: source=jsonl does not "),
        (["data=gsm8k", "data.families=[chain_sum]"], "data.families does nothing: source=hub does not read it"),
        (["stages.problems.reasoning.subset=x"], "stages.problems.reasoning.subset does nothing: source=reasoning_gym"),
        (["model.revision=abc"], "model.revision does nothing: model.source=scratch is trained here"),
        (
            ["model=qwen3_0_6b", "model.layers=2"],
            "model.layers does nothing: model.source=pretrained keeps the weights",
        ),
    ],
)
def test_a_key_that_the_source_does_not_read_is_told(overrides: list[str], told: str, tmp_path: Path) -> None:
    overrides = ["experiment=smoke", f"output_dir={tmp_path}", *overrides]
    (note,) = [note for note in make_plan(compose(overrides), overrides).warnings if "does nothing" in note]
    assert note.startswith(told)


def test_an_axis_that_the_source_does_not_read_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        check_axes(["-m", "experiment=smoke", "data=jsonl", f"data.path={GSM8K}", "data.difficulty=1,2"])
    assert [fault.key for fault in caught.value.faults] == ["data.difficulty"]
