"""What the plan says about an algorithm before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from stages.parts.losses import checks
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import CLIP_KNOBS, PAPERS

ROOT = Path(__file__).parents[3]


def config(**knobs) -> AlgorithmConfig:
    return AlgorithmConfig(**{"beta": 0.001, "epsilon": 0.2, **knobs})


def stage(**knobs):
    return {"G": 8, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_response_tokens": 100, **knobs}


def inert(cfg, **knobs):
    return checks.inert(cfg, **{"G": 8, "updates_per_rollout": 2, "epochs_per_rollout": 1, "steps": 100, **knobs})


@pytest.mark.parametrize(
    ("knobs", "key", "remedy"),
    [
        ({"name": "gpro"}, "name", "or grpo"),
        ({"name": "dr-grpo"}, "name", "write dr_grpo"),
        ({"reduction": "token-mean"}, "reduction", "write token_mean"),
        ({"std": "batch"}, "std", "population"),
        ({"zero_variance": "dropped"}, "zero_variance", "write drop"),
        ({"kl_estimator": "k4"}, "kl_estimator", "k3"),
        ({"kl_place": "rewards"}, "kl_place", "write reward"),
        ({"beta": -0.1}, "beta", "0 or more"),
        ({"beta": float("nan")}, "beta", "0 or more"),
        ({"epsilon": -0.2}, "epsilon", "0 or more"),
        ({"epsilon_high": 0.1}, "epsilon_high", "at least 0.2"),
        ({"dual_clip": 1.0}, "dual_clip", "3.0"),
        ({"importance_cap": 0.0}, "importance_cap", "2.0"),
        ({"name": "cispo"}, "ratio_max", "5.0"),
        ({"name": "cispo", "ratio_max": 0.2}, "ratio_max", "write 1.2"),
        ({"overlong_buffer_tokens": -1}, "overlong_buffer_tokens", "0 or more"),
    ],
)
def test_a_fault_names_its_key_and_the_remedy(knobs, key, remedy):
    (fault,) = config(**knobs).faults()
    assert fault.key == key and remedy in fault.remedy


@pytest.mark.parametrize(
    ("algorithm", "of_stage", "key", "remedy"),
    [
        ({}, {"G": 1}, "G", "reinforce_pp"),
        ({"std": "none"}, {"G": 1}, "G", "2 or more"),
        ({"name": "rloo"}, {"G": 1}, "G", "2 or more"),
        ({"name": "reinforce_pp"}, {"G": 1}, "algorithm.kl_place", "kl_place=reward"),
        ({"importance_cap": 2.0}, {"top_p": 0.9}, "top_p", "importance_cap"),
        ({"importance_cap": 2.0}, {"top_k": 20}, "top_k", "importance_cap"),
        ({"overlong_buffer_tokens": 101}, {}, "algorithm.overlong_buffer_tokens", "less than 100"),
        ({}, {"temperature": 0.0}, "temperature", "1.0"),
    ],
)
def test_impossible_combinations(algorithm, of_stage, key, remedy):
    (fault,) = checks.rl_faults(config(**algorithm), **stage(**of_stage))
    assert fault.key == key and remedy in fault.remedy


def test_what_is_right_has_no_fault():
    assert config().faults() == [] and checks.rl_faults(config(), **stage()) == []
    assert config(name="cispo", ratio_max=5.0).faults() == []
    cfg = config(name="reinforce_pp", kl_place="reward", kl_estimator="k1")
    assert checks.rl_faults(cfg, **stage(G=1)) == []
    assert checks.rl_faults(config(), **stage(top_p=0.9)) == []


@pytest.mark.parametrize(
    ("algorithm", "of_stage", "knob", "because"),
    [
        ({}, {"updates_per_rollout": 1}, "epsilon", "one update"),
        ({"name": "gspo"}, {"updates_per_rollout": 1}, "epsilon_high", "one update"),
        ({"name": "cispo", "ratio_max": 5.0}, {"updates_per_rollout": 1}, "ratio_max", "one update"),
        ({"name": "cispo", "ratio_max": 5.0}, {}, "epsilon", "ratio_max"),
        ({"name": "rloo"}, {}, "epsilon", "clips no"),
        ({"name": "dr_grpo"}, {}, "std", "never divides"),
        ({"beta": 0.0}, {}, "kl_estimator", "no reference"),
        ({"beta": 0.0}, {}, "reference_reset_steps", "no reference"),
        ({"kl_estimator": "k1"}, {}, "beta", "no expected gradient"),
        ({"epsilon": 10.0, "epsilon_high": 10.0}, {}, "epsilon", "never reached"),
        ({"epsilon_high": 0.2}, {}, "epsilon_high", "with it and without"),
        ({"reference_reset_steps": 100}, {}, "reference_reset_steps", "before the first reset"),
        ({}, {}, "ratio_max", "cispo"),
        ({"std": "none"}, {}, "std_epsilon", "std=none"),
        ({"zero_variance": "drop"}, {}, "max_resample_rounds", "draws nothing"),
        ({"name": "reinforce_pp"}, {"G": 1}, "zero_variance", "no groups"),
    ],
)
def test_axes_that_do_nothing(algorithm, of_stage, knob, because):
    assert because in inert(config(**algorithm), **of_stage)[f"algorithm.{knob}"]


def test_axes_that_act_are_not_called_inert():
    for name in ("grpo", "dapo", "gspo", "dr_grpo", "reinforce_pp"):
        why = inert(config(name=name, epsilon_high=0.28))
        assert not any(f"algorithm.{knob}" in why for knob in CLIP_KNOBS)
        assert "algorithm.beta" not in why
    assert "algorithm.epsilon" not in inert(config(), updates_per_rollout=1, epochs_per_rollout=2)
    assert "algorithm.beta" not in inert(config(kl_estimator="k1", kl_place="reward"))
    assert "algorithm.std" not in inert(config())
    assert "algorithm.reference_reset_steps" not in inert(config(reference_reset_steps=50))


def test_a_pinned_root_knob_is_explained():
    assert set(checks.pinned("dapo")) == {"beta", "epsilon"} and checks.pinned("grpo") == {}
    assert "0.0003" in checks.pinned("gspo")["epsilon"] and "2507.18071" in checks.pinned("gspo")["epsilon"]


@pytest.mark.parametrize("name", PAPERS)
def test_the_yaml_of_a_row_says_what_its_paper_says(name):
    """Pins are literals there; every knob of the paper is met, in the YAML or by default."""
    written = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "algorithm" / f"{name}.yaml"), resolve=False)
    assert written["name"] == name
    assert set(PAPERS[name].pins) == {knob for knob in ("beta", "epsilon") if knob in written}
    cfg = OmegaConf.merge(
        {
            "beta": 0.001,
            "epsilon": 0.2,
            "scale": {"overlong_buffer_tokens": 20},
            "a": OmegaConf.structured(AlgorithmConfig),
        },
        {"a": written},
    )
    cfg = OmegaConf.to_object(cfg)["a"]
    assert cfg.faults() == []
    assert checks.unusual(cfg, updates_per_rollout=1) == []


def test_departures_from_a_rows_own_paper_are_told():
    cfg = config(name="dapo", beta=0.0, reduction="sequence_mean", epsilon_high=0.28, zero_variance="resample")
    assert checks.unusual(cfg, updates_per_rollout=1) == [
        "algorithm.reduction=sequence_mean: dapo has token_mean (arXiv:2503.14476)"
    ]
    cfg = config(name="rloo", reduction="sequence_sum_mean", kl_estimator="k1", kl_place="reward")
    assert "off-policy" in checks.unusual(cfg, updates_per_rollout=4)[0]


def test_rows_and_papers_are_the_same_list():
    from stages.parts.losses.algorithms import ALGORITHMS
    from stages.parts.losses.reductions import REDUCTIONS

    assert list(ALGORITHMS) == list(PAPERS) == list(checks.CHOICES["name"])
    assert checks.CHOICES["reduction"] == REDUCTIONS


def test_the_head_needs_no_torch():
    code = (
        "import sys; from stages.parts.losses.config import AlgorithmConfig as A; A(beta=0.0, epsilon=0.2).faults();"
        " assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
