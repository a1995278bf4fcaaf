"""Ports and what feeds them: nothing is guessed, and what cannot be right is refused with what would fit."""

from __future__ import annotations

import pytest

from pipeline.config import RunConfig
from pipeline.plan import make_plan
from tests.pipeline.plans import refusal, wire


def test_an_optional_port_may_stay_open(cfg: RunConfig) -> None:
    wire(cfg, "base", problems=None)
    assert make_plan(cfg).stage("base").inputs == {}


@pytest.mark.parametrize("wired", ["cold_strat.model", "nope.model"])
def test_unknown_source_stage(cfg: RunConfig, wired: str) -> None:
    wire(cfg, "reasoning_rl", policy=wired)
    (line,) = refusal(cfg)
    assert line.startswith("stages.reasoning_rl.inputs.policy: there is no stage")
    assert "write stages.reasoning_rl.inputs.policy=" in line and "base.model" in line


def test_removed_stage_that_others_need(cfg: RunConfig) -> None:
    del cfg.stages["cold_start"]
    (line,) = refusal(cfg)
    assert "there is no stage 'cold_start' in this run -> write stages.reasoning_rl.inputs.policy=base.model" in line
    assert "general_rl.model" not in line  # which comes later, so it would make a circle


def test_removed_problems_also_stop_the_evaluations_with_one_line(cfg: RunConfig) -> None:
    del cfg.stages["mixed_problems"]
    assert sum(line.startswith("evaluation.problems: ") for line in refusal(cfg)) == 1


def test_unknown_output(cfg: RunConfig) -> None:
    wire(cfg, "reasoning_rl", policy="cold_start.weights")
    assert "cold_start has no output 'weights' -> write" in refusal(cfg)[0]


def test_wrong_kind_of_artifact(cfg: RunConfig) -> None:
    wire(cfg, "rejection_sft", data="problems.problems")
    (line,) = refusal(cfg)
    assert "problems.problems is a dataset:problems, the port takes a dataset:conversations" in line


def test_open_port_that_is_required(cfg: RunConfig) -> None:
    wire(cfg, "reasoning_rl", policy=None)
    assert refusal(cfg)[0].startswith("stages.reasoning_rl.inputs.policy: is not wired")


def test_unknown_port(cfg: RunConfig) -> None:
    wire(cfg, "reasoning_rl", polcy="base.model")
    assert "rl has no input 'polcy' -> write policy" in refusal(cfg)[0]


def test_a_circle(cfg: RunConfig) -> None:
    wire(cfg, "cold_start", policy="general_rl.model")
    circles = [line for line in refusal(cfg) if "wait for each other" in line]
    assert len(circles) == 1 and "cold_start <- general_rl <- rejection_sft" in circles[0]


def test_a_stage_that_reads_itself(cfg: RunConfig) -> None:
    wire(cfg, "cold_start", policy="cold_start.model")
    assert any("wait for each other: cold_start <- cold_start" in line for line in refusal(cfg))


@pytest.mark.parametrize("stage", ["cold_start", "base"])
def test_a_stage_without_its_port(cfg: RunConfig, stage: str) -> None:
    wire(cfg, "reasoning_rl", policy=stage)
    key = "stages.reasoning_rl.inputs.policy"
    assert refusal(cfg) == [f"{key}: '{stage}' is a stage and not one of its outputs -> write {key}={stage}.model"]


def test_a_stage_that_makes_nothing_of_that_kind(cfg: RunConfig) -> None:
    wire(cfg, "reasoning_rl", policy="problems")
    (line,) = refusal(cfg)
    assert "'problems' is a stage and not one of its outputs -> write" in line and "(a model: base.model" in line


def test_a_port_that_may_stay_open_is_told(cfg: RunConfig) -> None:
    wire(cfg, "cold_start", data="nope.demonstrations")
    assert refusal(cfg)[0].endswith(", or leave the port open: stages.cold_start.inputs.data=null")


def test_a_stage_of_another_kind_is_one_fault(cfg: RunConfig) -> None:
    cfg.stages["cold_start"].kind = "rl"
    (line,) = refusal(cfg)
    assert line.startswith("stages.cold_start.kind: ") and line.endswith("write stage@stages.cold_start=rl instead")
