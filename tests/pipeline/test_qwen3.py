"""The recipes qwen3_style and qwen3_small: their shape, what they share with r1_style, and what a plan refuses."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest

from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan
from stages.parts.policy.config import OptimizerConfig
from stages.sft.config import SFTConfig, outline


@cache
def composed(*overrides: str) -> RunConfig:
    return compose(list(overrides))


def planned(folder: Path, *overrides: str):
    cfg = copy.deepcopy(composed(*overrides))
    cfg.output_dir = str(folder)
    return make_plan(cfg)


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(Refused) as caught:
        planned(folder, *overrides)
    return str(caught.value)


def test_the_four_stages_each_go_on_from_the_one_before():
    wired = {name: stage.inputs for name, stage in composed("pipeline=qwen3_style").stages.items()}
    assert wired["cold_start"] | {"problems": None} == {
        "policy": "base.model",
        "data": "cold_start_data.kept",
        "problems": None,
    }
    assert wired["reasoning_rl"]["policy"] == "cold_start.model"
    assert wired["thinking_data"]["policy"] == "reasoning_rl.model"
    assert wired["fusion_data"]["thinking"] == "thinking_data.kept"
    assert wired["thinking_mode_fusion"]["policy"] == "reasoning_rl.model"  # continued, not from base as with R1
    assert wired["general_rl"] == {
        "policy": "thinking_mode_fusion.model",
        "problems": "fusion_data.problems",
        "reward_model": "reward_model.model",
    }


def test_general_rl_is_rewarded_by_rules_by_references_and_by_preferences(tmp_path):
    plan = planned(tmp_path, "pipeline=qwen3_style")
    named = plan.stage("fusion_data").outline.outputs["problems"]["scored_by"]
    cfg = plan.stage("general_rl").cfg
    assert "helpfulness" in named["helpful"] and "accuracy" in named["translation"]
    assert set(cfg.suites) == {"reasoning", "general", "translation", "helpful"}
    assert cfg.reward.weight("helpfulness") > 0


def test_what_recipes_share_has_one_name_in_the_store(tmp_path):
    r1, style, small = (planned(tmp_path, f"pipeline={name}") for name in ("r1_style", "qwen3_style", "qwen3_small"))
    for name in ("problems", "base"):
        assert r1.stage(name).fingerprint == style.stage(name).fingerprint == small.stage(name).fingerprint
    assert r1.stage("student_base").fingerprint == small.stage("student_base").fingerprint
    for stage in style.stages:
        assert stage.fingerprint == small.stage(stage.name).fingerprint


def test_the_template_changes_where_the_modes_are_taught_and_the_facts_say_so(tmp_path):
    plan = planned(tmp_path, "pipeline=qwen3_small")
    facts = {stage.name: stage.outline.outputs["model"] for stage in plan.stages if "model" in stage.outline.outputs}
    assert not facts["reasoning_rl"]["thinking_modes"] and facts["thinking_mode_fusion"]["thinking_modes"]
    hashes = {name: found["template_hash"] for name, found in facts.items()}
    assert hashes["base"] == hashes["reasoning_rl"] == hashes["student_base"] != hashes["thinking_mode_fusion"]
    assert hashes["thinking_mode_fusion"] == hashes["general_rl"] == hashes["off_policy"] == hashes["on_policy"]
    assert not [note for note in plan.warnings if "template" in note]


def test_a_template_that_cannot_express_no_thinking_is_refused():
    cfg = SFTConfig(seed=0, modes=True, optimizer=OptimizerConfig())
    (fault,) = outline(
        cfg, {"policy": {"thinking_modes": False, "template_hash": "of another"}, "data": {"rows": 4}}
    ).faults
    assert fault.key == "modes" and "enable_thinking" in fault.remedy
    assert not outline(cfg, {"policy": {"thinking_modes": True, "template_hash": "x"}, "data": {"rows": 4}}).faults
    assert not outline(cfg, {"policy": {}, "data": {"rows": 4}}).faults  # not known before it is loaded


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("evaluation.budgets=[8,77]", "evaluation.budgets: is 77: with the stop text (18 tokens)"),
        ("stages.general_rl.thinking_budget=77", "stages.general_rl.thinking_budget: is 77"),
        ("stages.general_rl.thinking_budget=200", "write less, 61, or max_response_tokens=235"),
        ("stages.thinking_data.thinking_budget=-1", "stages.thinking_data.thinking_budget: is -1"),
        ("scale.stop_text='</think> so </think>'", "evaluation.stop_text: closes the think block 2 times"),
        ("evaluation.stop_text='<think> so'", "evaluation.stop_text: opens a think block"),
        ("evaluation.stop_text='so<|im_end|>'", "has '<|im_end|>' in it, which ends the turn or begins another"),
        ("evaluation.stop_text='so</s>'", "has '</s>' in it, which ends the turn or begins another"),
        ("stages.thinking_data.thinking_budget=77", "stages.thinking_data.thinking_budget: is 77"),
        (
            "stages.cold_start.few_shot_sampling.thinking_budget=90",
            "stages.cold_start.few_shot_sampling.thinking_budget: is 90",
        ),
        ("stages.fusion_data.no_thinking_fraction=0", "stages.fusion_data.no_thinking_fraction"),
        ("stages.cold_start_data.max_direct_share=2", "stages.cold_start_data.max_direct_share"),
    ],
)
def test_what_is_refused(tmp_path, override, key):
    assert key in refusal(tmp_path, "pipeline=qwen3_style", override)


def test_weak_students_faults(tmp_path):
    told = refusal(
        tmp_path, "pipeline=qwen3_small", "stages.off_policy.temperature=0", "stages.off_policy.hard_weight=2"
    )
    assert "stages.off_policy.temperature" in told and "stages.off_policy.hard_weight" in told


def test_a_student_of_the_hub_cannot_learn_the_probabilities_of_an_embedded_teacher(tmp_path):
    told = refusal(tmp_path, "pipeline=qwen3_small", "student=qwen3_0_6b")
    faults = [line for line in told.splitlines() if "is not the student's (Qwen/Qwen3)" in line]
    assert [line.partition(": ")[0] for line in faults] == [
        "stages.off_policy.inputs.teacher",
        "stages.on_policy.inputs.teacher",
    ]
    told = refusal(tmp_path, "pipeline=distillation_study", "student=qwen3_0_6b")
    assert "stages.logit_distillation.inputs.teacher_logits: the teacher's tokenizer (bytes)" in told


@pytest.mark.parametrize(
    ("pipeline", "experiment", "parameters"),
    [
        ("qwen3_style", "qwen3_0_6b_style", {"general_rl": 596049920}),
        ("qwen3_style", "qwen3_8b_style", {"general_rl": 8190735360}),
        ("qwen3_small", "qwen3_0_6b_small", {"on_policy": 596049920}),
        ("qwen3_small", "qwen3_8b_small", {"general_rl": 8190735360, "on_policy": 596049920}),
    ],
)
def test_real_models_are_planned_without_a_network(tmp_path, pipeline, experiment, parameters):
    plan = planned(tmp_path, f"pipeline={pipeline}", f"experiment={experiment}")
    assert {name: plan.stage(name).outline.parameters for name in parameters} == parameters
    assert plan.stage("thinking_mode_fusion").cfg.modes


def test_modes_and_budgets_are_evaluated_here_and_not_elsewhere(tmp_path):
    here = planned(tmp_path, "pipeline=qwen3_style").stage("general_rl.eval").cfg
    elsewhere = planned(tmp_path, "pipeline=r1_style").stage("general_rl.eval").cfg
    assert here.modes and here.budgets and not elsewhere.modes and not elsewhere.budgets
