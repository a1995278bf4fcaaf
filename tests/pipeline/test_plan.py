"""The plan itself: order, evaluations, what is wanted, threads; and that all faults are told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import plan as planning
from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.kinds import kinds
from pipeline.plan import make_plan
from tests.pipeline.plans import refusal, wire


def test_sources_stand_before_their_readers(cfg: RunConfig) -> None:
    cfg.stages = dict(reversed(cfg.stages.items()))
    order = [stage.name for stage in make_plan(cfg).stages]
    for stage in make_plan(cfg).stages:
        for source in stage.inputs.values():
            assert order.index(source.stage) < order.index(stage.name)


def test_every_model_is_evaluated_unless_told_otherwise(cfg: RunConfig) -> None:
    cfg.stages["student_base"].evaluate = False
    evaluated = {stage.evaluates for stage in make_plan(cfg).stages if stage.evaluates}
    makers = {name for name, stage in cfg.stages.items() if kinds()[stage.kind].model_port}
    assert evaluated == makers - {"student_base"}
    cfg.evaluation.enabled = False
    assert not any(stage.evaluates for stage in make_plan(cfg).stages)


def test_until_keeps_what_the_stage_needs(cfg: RunConfig) -> None:
    cfg.until = "cold_start"
    wanted = [stage.name for stage in make_plan(cfg).stages if stage.wanted]
    assert wanted == ["problems", "base", "mixed_problems", "base.eval", "cold_start"]
    cfg.until = "cold_start.eval"
    assert [stage.name for stage in make_plan(cfg).stages if stage.wanted] == [*wanted, "cold_start.eval"]


def test_until_trains_nothing_to_evaluate(tmp_path: Path) -> None:
    late = "evaluation.problems=fusion_data.problems"  # made from what the RL model says
    cfg = compose(["pipeline=qwen3_style", "until=cold_start", late, f"output_dir={tmp_path}"])
    wanted = [stage.name for stage in make_plan(cfg).stages if stage.wanted]
    assert wanted == ["problems", "base", "cold_start_data", "cold_start"]


def test_threads_are_shared_by_ranks_and_by_what_may_run_beside(
    cfg: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "hardware", lambda: {"cores": 8, "gpus": 0})
    plan = make_plan(cfg)
    assert plan.parallel == 2
    assert plan.stage("problems").threads == 4  # mixed_problems may run beside them
    assert plan.stage("cold_start").threads == 4  # base.eval may run beside it
    cfg.stages["cold_start"].num_ranks = 2
    assert make_plan(cfg).stage("cold_start").threads == 2
    cfg.launcher.parallel_stages = 1
    assert make_plan(cfg).stage("cold_start").threads == 4


@pytest.mark.parametrize("field", ["until", "from_stage"])
def test_unknown_stage_in_until_and_from_stage(cfg: RunConfig, field: str) -> None:
    setattr(cfg, field, "general_lr")
    assert refusal(cfg)[0].startswith(f"{field}: there is no stage 'general_lr' -> write general_rl")


def test_unknown_stage_in_force(cfg: RunConfig) -> None:
    cfg.force = ["basee"]
    assert refusal(cfg)[0].startswith("force: there is no stage 'basee' -> write base")


def test_from_stage_needs_everything_before_it(cfg: RunConfig) -> None:
    cfg.from_stage = "reasoning_rl"
    assert refusal(cfg) == [
        "from_stage: before reasoning_rl, not cached: problems, base, cold_start"
        " -> leave from_stage out, or write from_stage=problems"
    ]


def test_all_faults_at_once(cfg: RunConfig) -> None:
    cfg.until = "nope"
    cfg.stages["general_rl"].steps = 0
    wire(cfg, "reasoning_rl", policy="nope.model")
    lines = refusal(cfg)
    assert [line.split(":")[0] for line in lines] == [
        "until",
        "stages.reasoning_rl.inputs.policy",
        "stages.general_rl.steps",
    ]
