"""With a critic and without: what PPO and GRPO reached from the same model, and what each of them needed.

The articles say that GRPO halves the memory of PPO. What was measured stands here as it is, next to what the states of
the models must take by themselves: where models are small, activations hide the critic.
"""

from __future__ import annotations

from pipeline.report.load import RunView, StageView
from pipeline.report.page import count, duration, percent, section, signed, table, text
from pipeline.statistics import paired_difference

NOTE = (
    "Stages that start from the same model, one with a critic. Time is the stage's own; tokens are the responses that "
    "it sampled. Peak: of the GPU's allocator, or on a CPU the growth of the process over the stage, in which "
    "activations and late-loaded libraries count too. States: weights, gradients, optimizer and reference, computed."
)


def critic(run: RunView) -> str:
    """Nothing unless a `ppo` stage and an `rl` stage started from the same model."""
    parts = []
    for ppo in (stage for stage in run.main_stages if stage.kind == "ppo" and stage.artifact):
        for other in run.main_stages:
            if other.kind == "rl" and other.artifact and other.input_model == ppo.input_model:
                parts.append(_table(run, [other, ppo]) + _verdict(run, other, ppo))
    return section("With and without a critic", "".join(parts), NOTE)


def _table(run: RunView, stages: list[StageView]) -> str:
    head = ["stage", "pass@1", "time", "sampling", "tokens", "peak memory", "states"]
    return table(head, [_row(run, stage) for stage in stages])


def _row(run: RunView, stage: StageView) -> list[str]:
    accuracies = [
        f"{text(suite)} {percent(sum(rates.values()) / len(rates))}" for suite, rates in rates_of(run, stage).items()
    ]
    return [
        f"{text(stage.name)} <small>{text(stage.kind)}</small>",
        "<br>".join(accuracies) or "–",
        duration(stage.computed_seconds),
        duration(sum_of(stage, "time/sample_seconds")),
        count(sum_of(stage, "rollout/tokens")),
        _bytes(stage.metrics.get("memory/peak_bytes")),
        _bytes(stage.metrics.get("memory/state_bytes")),
    ]


def _verdict(run: RunView, grpo: StageView, ppo: StageView) -> str:
    """What PPO cost and gained, in a sentence a quantity."""
    told = []
    for key, name in (("memory/peak_bytes", "peak memory as measured"), ("memory/state_bytes", "memory of its states")):
        with_critic, without = ppo.metrics.get(key), grpo.metrics.get(key)
        if with_critic and without:
            told.append(f"<b>{with_critic / without:.2f}×</b> the {name} (the articles: about 2×)")
    if grpo.computed_seconds:
        told.append(f"<b>{ppo.computed_seconds / grpo.computed_seconds:.2f}×</b> the time")
    for suite, rates in rates_of(run, ppo).items():
        gap = paired_difference(rates, rates_of(run, grpo).get(suite, {}))
        if gap is not None:
            interval = f"{signed(gap.low)} … {signed(gap.high)}"
            told.append(f"{text(suite)} <b>{signed(gap.mean)}</b> points, 95% interval {interval}, paired")
    items = "".join(f"<li>{item}</li>" for item in told)
    return f"<p>{text(ppo.name)} against {text(grpo.name)}:</p><ul>{items}</ul>"


def rates_of(run: RunView, stage: StageView) -> dict[str, dict[str, float]]:
    """suite -> problem -> share of its responses that were right."""
    evaluation = run.evaluation(stage.name)
    suites = dict.fromkeys(row["suite"] for row in evaluation.results) if evaluation is not None else {}
    return {suite: rates for suite in suites if evaluation is not None and (rates := evaluation.rates(suite))}


def sum_of(stage: StageView, key: str) -> float:
    """Over all that was recorded of a metric."""
    return sum(row[key] for row in stage.rows if row.get(key) is not None)


def _bytes(number: float | None) -> str:
    if number is None:
        return "–"
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1e3:.0f} kB"
