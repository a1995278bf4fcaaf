"""Stages that were trained on rewards from one and the same model: what differs between them, and what each reached.

Outcome against process supervision (pipeline=deepseekmath) and one reduction against another (pipeline=length_bias) are
told here; with a critic and without has a section of its own.
"""

from __future__ import annotations

from typing import Any

from pipeline.report.critic import rates_of, sum_of
from pipeline.report.curves import series_of
from pipeline.report.emergence import ends_of
from pipeline.report.load import RunView, StageView
from pipeline.report.page import count, duration, number, percent, section, signed, table, text
from pipeline.statistics import paired_difference
from pipeline.store import read_yaml

NOTE = (
    "Stages of one kind that start from the same model. Accuracy is of held-out problems (test); right steps and "
    "length are of the responses in training, at the end. Differences are paired, with 95% intervals."
)


def siblings(run: RunView) -> str:
    """Nothing unless two `rl` stages started from the same model."""
    families: dict[str, list[StageView]] = {}
    for stage in run.main_stages:
        if stage.kind == "rl" and stage.artifact and stage.input_model:
            families.setdefault(stage.input_model, []).append(stage)
    parts = [
        f"<h3>from {text(origin)}</h3>{_table(run, stages)}{_verdicts(run, stages)}"
        for origin, stages in families.items()
        if len(stages) > 1
    ]
    return section("Side by side", "".join(parts), NOTE)


def _table(run: RunView, stages: list[StageView]) -> str:
    told = differences([_config(stage) for stage in stages])
    rows = [_row(run, stage, what) for stage, what in zip(stages, told, strict=True)]
    return table(["stage", "pass@1", "right steps", "length", "tokens", "time"], rows)


def _row(run: RunView, stage: StageView, what: list[str]) -> list[str]:
    recorded = series_of(stage)
    accuracies = [
        f"{text(suite)} <b>{percent(sum(rates.values()) / len(rates))}</b>"
        for suite, rates in rates_of(run, stage).items()
    ]
    steps, lengths = recorded.get("steps/right"), recorded.get("length/mean")
    return [
        f"{text(stage.name)} <small>{text(', '.join(what))}</small>",
        "<br>".join(accuracies) or "–",
        percent(ends_of(steps)[1]) if steps else "–",
        number(round(ends_of(lengths)[1], 1)) if lengths else "–",
        count(sum_of(stage, "rollout/tokens")),
        duration(stage.computed_seconds),
    ]


def _verdicts(run: RunView, stages: list[StageView]) -> str:
    first, *others = stages
    told = []
    for other in others:
        for suite, rates in rates_of(run, other).items():
            gap = paired_difference(rates, rates_of(run, first).get(suite, {}))
            if gap is not None:
                interval = f"{signed(gap.low)} … {signed(gap.high)}"
                told.append(
                    f"<li>{text(other.name)} against {text(first.name)}, {text(suite)}: <b>{signed(gap.mean)}</b> "
                    f"points, {interval}</li>"
                )
    return f"<ul>{''.join(told)}</ul>" if told else ""


def differences(configs: list[dict[str, Any]]) -> list[list[str]]:
    """For each config, the settings that are not the same in all of them, as `key value`."""
    flat = [_flat(config) for config in configs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    differing = [key for key in keys if len({str(one.get(key)) for one in flat}) > 1]
    return [[f"{key} {one.get(key)}" for key in differing] for one in flat]


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix.rstrip("."): node}
    return {key: value for name, inner in node.items() for key, value in _flat(inner, f"{prefix}{name}.").items()}


def _config(stage: StageView) -> dict[str, Any]:
    path = stage.path / "config.yaml"
    return read_yaml(path) if path.exists() else {}
