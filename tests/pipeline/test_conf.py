"""Every YAML under conf/ composes into typed dataclasses and plans; choices beat each other in the promised order."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest

from pipeline.compose import CONF, compose, default_name, job_folder
from pipeline.config import RunConfig
from pipeline.kinds import kinds
from pipeline.plan import make_plan

NEEDS = {
    "scale=small": ["model=qwen3_0_6b"],
    "data=jsonl": ["data.path=tests/data/gsm8k_sample.jsonl"],
    "model=hf": ["model.name_or_path=Qwen/Qwen3-0.6B-Base", "model.revision=da87bfb608c14b7cf20ba1ce41287e8de496c0cd"],
    "data=hub": ["data.name=openai/gsm8k"],
    "student=hf": ["model=hf", "model.name_or_path=org/name", f"model.revision={'0' * 40}"],
}
CHOICES = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(CONF.glob("*/*.yaml"))
    if path.parent.name not in ("stage", "hydra", "suite")
]


@cache
def composed(*overrides: str) -> RunConfig:
    return compose(list(overrides))


def config(*overrides: str) -> RunConfig:
    return copy.deepcopy(composed(*overrides))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_and_plans(choice: str, tmp_path: Path) -> None:
    cfg = compose([choice, *NEEDS.get(choice, []), f"output_dir={tmp_path}"])
    plan = make_plan(cfg)
    assert {stage.name for stage in plan.stages} >= set(cfg.stages)
    assert all(stage.fingerprint for stage in plan.stages)
    assert not any(tmp_path.iterdir())  # planning writes nothing


def test_every_suite_can_be_added_to_the_problems() -> None:
    suites = [path.stem for path in (CONF / "suite").glob("*.yaml")]
    plan = make_plan(config(*(f"+suite@stages.problems.{suite}={suite}" for suite in suites)))
    assert set(suites) == {"helpful", "safety"}
    assert set(plan.stage("problems").outline.outputs["problems"]["suites"]) == {"reasoning", "general", *suites}
    assert plan.stage("problems").fingerprint != make_plan(config()).stage("problems").fingerprint


def test_every_kind_has_a_stage_yaml() -> None:
    assert {path.stem for path in (CONF / "stage").glob("*.yaml")} == set(kinds())


def test_stages_become_the_dataclasses_of_their_kinds() -> None:
    for stage in config().stages.values():
        assert type(stage) is kinds()[stage.kind].config


def test_pipelines_pin_no_numbers() -> None:
    """A number in a pipeline silently beats a scale; mixtures of suites are part of the recipe."""
    for path in (CONF / "pipeline").glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if line.partition(":")[2].strip()[:1].isdigit()]


def test_the_shape_of_r1_style() -> None:
    wired = {name: stage.inputs for name, stage in config().stages.items()}
    assert wired["cold_start"]["policy"] == "base.model"
    assert wired["reasoning_rl"]["policy"] == "cold_start.model"
    assert wired["rejection_sampling"]["policy"] == "reasoning_rl.model"
    assert wired["rejection_sft"]["policy"] == "base.model"  # R1: from base again, not from the RL checkpoint
    assert wired["rejection_sft"]["data"] == "rejection_sampling.kept"
    assert wired["general_rl"]["policy"] == "rejection_sft.model"
    assert wired["reward_model"]["policy"] == "base.model"
    assert wired["general_rl"]["reward_model"] == "reward_model.model"
    assert wired["distillation"]["student"] == wired["distillation_control"]["student"] == "student_base.model"


def test_the_shape_of_r1_zero_and_deepseekmath() -> None:
    zero = config("pipeline=r1_zero").stages
    assert set(zero) == {"problems", "base", "reasoning_rl"}  # no demonstrations anywhere
    assert zero["reasoning_rl"].inputs["policy"] == "base.model"
    assert (zero["reasoning_rl"].reward.format, zero["reasoning_rl"].reward.language) == (1.0, 0.0)
    cfg = config("pipeline=deepseekmath")
    outcome, process = cfg.stages["outcome_rl"], cfg.stages["process_rl"]
    assert (outcome.updates_per_rollout, outcome.algorithm.beta) == (1, 0.04)
    assert outcome.algorithm.reference_reset_steps > 0
    assert (outcome.supervision, process.supervision) == ("outcome", "process")
    process.supervision = "outcome"
    assert outcome == process  # side by side: nothing else differs


def test_length_bias_differs_in_the_reduction_alone() -> None:
    stages = config("pipeline=length_bias").stages
    one, other = stages["sequence_mean_rl"], stages["constant_length_rl"]
    assert (one.algorithm.reduction, other.algorithm.reduction) == ("sequence_mean", "constant_length")
    other.algorithm.reduction = "sequence_mean"
    assert one == other


WAYS = ("cold_start_sft", "output_distillation", "logit_distillation", "on_policy_distillation")


@pytest.mark.parametrize("choice", [(), ("experiment=smoke",), ("model=qwen3_0_6b",)])
def test_every_way_of_the_distillation_study_sees_as_many_sequences(choice: tuple[str, ...]) -> None:
    """One student, one teacher; RL samples fewer prompts a step, each G times."""
    stages = config("pipeline=distillation_study", *choice).stages

    def sequences(name: str) -> int:
        stage = stages[name]
        a_step = stage.examples_per_step if stage.kind == "distill" else stage.prompts_per_step * stage.G
        return stage.steps * a_step

    budget = sequences("output_distillation")
    assert {name: sequences(name) for name in (*WAYS, "student_rl")} == dict.fromkeys((*WAYS, "student_rl"), budget)
    assert sequences("off_policy") == sequences("off_then_on_policy") == budget / 2
    assert {stages[name].inputs["student"] for name in (*WAYS, "off_policy")} == {"student_base.model"}
    assert stages["student_rl"].inputs["policy"] == "student_base.model"
    assert stages["off_then_on_policy"].inputs["student"] == "off_policy.model"
    teachers = {stage.inputs["teacher"] for stage in stages.values() if stage.inputs.get("teacher")}
    assert teachers == {"reasoning_rl.model"}
    assert not stages["output_distillation"].is_soft and stages["logit_distillation"].is_soft
    measured = {stage.inputs["student"] for stage in stages.values() if stage.kind == "exposure_bias"}
    assert measured == {f"{name}.model" for name in (*WAYS, "off_then_on_policy", "student_rl")}


def test_the_distillation_study_shares_what_it_can_with_r1_style(tmp_path: Path) -> None:
    study, r1 = (
        {
            stage.name: stage.fingerprint
            for stage in make_plan(config(f"pipeline={name}", f"output_dir={tmp_path}")).stages
        }
        for name in ("distillation_study", "r1_style")
    )
    for name in ("problems", "base", "cold_start", "reasoning_rl", "rejection_sampling", "student_base"):
        assert study[name] == r1[name], name
    assert study["cold_start_sft"] == r1["distillation_control"]


@pytest.mark.parametrize("paper", ["dapo", "dr_grpo", "gspo"])
def test_experiments_of_papers_compose_with_smoke_in_any_order(paper: str) -> None:
    one, other = config(f"experiment=[{paper},smoke]"), config(f"experiment=[smoke,{paper}]")
    assert one.stages == other.stages and one.evaluation == other.evaluation
    stage = one.stages["reasoning_rl"]
    assert (stage.algorithm.name, stage.algorithm.beta, stage.steps) == (paper, 0.0, 4)
    assert one.stages["general_rl"].algorithm.name == "grpo"  # these are papers on reasoning
    real = config(f"experiment={paper}", "model=qwen3_0_6b").stages["reasoning_rl"]
    sizes = (real.G, real.prompts_per_step, real.updates_per_rollout)
    assert sizes == {"dapo": (16, 32, 16), "dr_grpo": (8, 16, 8), "gspo": (8, 32, 4)}[paper]
    assert config(f"experiment={paper}", "G=6").stages["reasoning_rl"].G == 6
    assert (
        make_plan(config(f"experiment={paper}", "pipeline=r1_zero")).stage("reasoning_rl").cfg.algorithm.name == paper
    )


def test_what_dapo_rewards() -> None:
    reward = config("experiment=dapo").stages["reasoning_rl"].reward
    assert (reward.accuracy, reward.wrong, reward.format, reward.language) == (1.0, -1.0, 0.0, 0.0)


def test_control_differs_from_distillation_in_its_data_alone() -> None:
    stages = config().stages
    one, other = stages["distillation"], stages["distillation_control"]
    other.inputs = one.inputs
    assert one == other


def test_root_knobs_reach_every_rl_stage_and_stay_overridable() -> None:
    cfg = config("G=6", "beta=0.5", "epsilon=0.3", "stages.general_rl.G=4", "stages.general_rl.algorithm.beta=0.25")
    first, second = cfg.stages["reasoning_rl"], cfg.stages["general_rl"]
    assert (first.G, first.algorithm.beta, first.algorithm.epsilon) == (6, 0.5, 0.3)
    assert (second.G, second.algorithm.beta, second.algorithm.epsilon) == (4, 0.25, 0.3)


def test_algorithm_and_engine_for_one_stage() -> None:
    cfg = config(
        "algorithm@stages.reasoning_rl.algorithm=dapo", "engine=zero2", "engine@stages.general_rl.engine=zero3"
    )
    assert cfg.stages["reasoning_rl"].algorithm.name == "dapo"
    assert cfg.stages["reasoning_rl"].algorithm.beta == 0.0  # pinned by the paper, whatever the root says
    assert cfg.stages["general_rl"].algorithm.name == "grpo"
    assert (cfg.stages["cold_start"].engine.zero_stage, cfg.stages["general_rl"].engine.zero_stage) == (2, 3)


def test_a_stage_can_be_left_out() -> None:
    assert "distillation_control" not in config("~stages.distillation_control").stages


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        ((), 96),
        (("model=qwen3_0_6b",), 2048),  # a model brings its scale
        (("model=qwen3_0_6b", "experiment=smoke"), 48),  # an experiment beats the model's
        (("model=qwen3_0_6b", "experiment=smoke", "scale=tiny"), 96),  # the command line beats both
    ],
)
def test_scale_of_model_experiment_and_command_line(overrides: tuple[str, ...], tokens: int) -> None:
    assert config(*overrides).evaluation.max_response_tokens == tokens


def test_the_seed_of_data_is_apart_from_the_seed_of_training() -> None:
    cfg = config("seed=3", "data.seed=5")
    assert cfg.stages["reasoning_rl"].seed == 3
    problems = cfg.stages["problems"]
    assert (problems.seed, problems.reasoning.seed, problems.general.seed) == (5, 5, 5)


def test_names_of_runs_and_folders_of_sweeps() -> None:
    assert config().name == "r1_style"
    assert config("experiment=[smoke,shuffled_rewards]").name == "r1_style-smoke+shuffled_rewards"
    assert default_name("r1_style", ["experiment=smoke", "G=4"]) == "r1_style-smoke"
    assert job_folder("G=4,beta=0.1") == "G=4,beta=0.1"
    assert job_folder("") == "default"
    assert "/" not in job_folder("data.path=/a/b")
    assert len(job_folder("x" * 300)) < 40
    assert job_folder("x" * 300) != job_folder("x" * 299)


def test_keys_of_the_users_own_need_no_plus() -> None:
    cfg = config("data.columns.prompt=q", "stages.reasoning_rl.suites.general=0.5", "model.facts.layers=2")
    assert cfg.data.columns == cfg.stages["problems"].reasoning.columns == {"prompt": "q"}
    assert cfg.stages["reasoning_rl"].suites == {"reasoning": 1.0, "general": 0.5}
    assert cfg.stages["base"].model.facts == {"layers": 2}
    assert config("stages.rejection_sft.inputs.problems=problems.problems").stages["rejection_sft"].inputs["problems"]
