"""What is refused before anything runs, and which knobs do nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stages.on_policy_distill.config import outline
from tests.stages.on_policy_distill.world import ALGORITHM, CONFIG

MODEL = {"tokenizer_hash": "a", "end_tokens": [1], "template_hash": "t", "context_length": 128, "parameters": 5}
WIRED = {"student": MODEL, "teacher": MODEL, "problems": {"suites": {"reasoning": {"train": 32}}}}


def test_one_sample_a_prompt_and_no_data_are_enough():
    assert CONFIG.faults() == [] and outline(CONFIG, WIRED).faults == []


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("on_policy_fraction", {"on_policy_fraction": 1.5}),
        ("on_policy_fraction", {"on_policy_fraction": float("nan")}),
        ("on_policy_fraction", {"on_policy_fraction": 0.01}),  # of 8 prompts it rounds to none
        ("on_policy_fraction", {"on_policy_fraction": 0.99}),
        ("jsd_weight", {"jsd_weight": -0.1}),
        ("temperature", {"temperature": 0.0}),
        ("temperature", {"temperature": 0.0, "reward_weight": 1.0, "G": 2}),
        ("reduction", {"reduction": "mean"}),
        ("G", {"G": 0}),
        ("G", {"reward_weight": 1.0}),  # grpo has no one to compare with
        ("over_length", {"over_length": "cut"}),
        ("reward_weight", {"reward_weight": -1.0}),
        ("reward_weight", {"reward_weight": 1.0, "G": 2, "on_policy_fraction": 0.0}),
        ("algorithm.beta", {"reward_weight": 1.0, "G": 2, "algorithm": replace(ALGORITHM, beta=0.1)}),
        (
            "algorithm.zero_variance",
            {"reward_weight": 1.0, "G": 2, "algorithm": replace(ALGORITHM, zero_variance="resample")},
        ),
    ],
)
def test_faults_name_their_key(key, changes):
    (fault,) = replace(CONFIG, **changes).faults()
    assert fault.key == key and fault.remedy


@pytest.mark.parametrize(
    ("key", "inputs", "changes"),
    [
        ("inputs.teacher", {"teacher": MODEL | {"tokenizer_hash": "b"}}, {}),
        ("inputs.teacher", {"teacher": MODEL | {"end_tokens": [2]}}, {}),
        ("inputs.data", {}, {"on_policy_fraction": 0.5}),
        ("inputs.data", {"data": {"rows": 0}}, {"on_policy_fraction": 0.5}),
        ("max_tokens", {"data": {"rows": 9}}, {"on_policy_fraction": 0.5, "max_tokens": 129}),
        ("suites", {"problems": {"suites": {"general": {"train": 3}}}}, {}),
        ("max_response_tokens", {}, {"max_response_tokens": 128}),
    ],
)
def test_what_does_not_fit_the_inputs(key, inputs, changes):
    (fault,) = outline(replace(CONFIG, **changes), WIRED | inputs).faults
    assert fault.key == key and fault.remedy


def test_another_template_is_warned_of():
    assert outline(CONFIG, WIRED | {"teacher": MODEL | {"template_hash": "other"}}).warnings
    assert outline(CONFIG, WIRED).warnings == []


def test_knobs_that_do_nothing():
    plain = outline(CONFIG, WIRED)
    assert {"reward.accuracy", "algorithm.epsilon", "algorithm.name", "max_tokens"} <= set(plain.inert)
    assert "algorithm.mask_truncated" not in plain.inert and set(plain.inert) <= set(plain.redundant)
    rewarded = outline(replace(CONFIG, reward_weight=1.0, G=2, on_policy_fraction=0.5), WIRED | {"data": {"rows": 9}})
    assert not {"reward.accuracy", "algorithm.epsilon", "max_tokens"} & set(rewarded.inert)


def test_what_is_planned():
    plan = outline(replace(CONFIG, on_policy_fraction=0.5, G=2), WIRED | {"data": {"rows": 9}})
    assert plan.steps == 4 and plan.parameters == 5 and plan.outputs["model"]["tokenizer_hash"] == "a"
    assert plan.tokens == 4 * 8 * 2 * 6 // 2 + 4 * 8 * 96


@pytest.mark.parametrize("fraction", [float("nan"), float("inf")])
def test_a_fraction_that_is_none_is_outlined_all_the_same(fraction: float):
    """Its fault is told with all others."""
    assert outline(replace(CONFIG, on_policy_fraction=fraction), WIRED).tokens == outline(CONFIG, WIRED).tokens
