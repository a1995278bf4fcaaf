"""The plan itself: order, evaluations, what is wanted, threads; and one refusal a test of what cannot be right."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest

from pipeline import plan as planning
from pipeline.artifacts import Outline
from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.kinds import kinds
from pipeline.messages import Refused
from pipeline.plan import make_plan
from pipeline.store import write_json


@cache
def smoke() -> RunConfig:
    return compose(["experiment=smoke"])


@pytest.fixture
def cfg(tmp_path: Path) -> RunConfig:
    cfg = copy.deepcopy(smoke())
    cfg.output_dir = str(tmp_path)
    return cfg


def refusal(cfg: RunConfig) -> list[str]:
    """The lines of a refusal."""
    with pytest.raises(Refused) as caught:
        make_plan(cfg)
    return str(caught.value).splitlines()


def wire(cfg: RunConfig, stage: str, **ports: str | None) -> None:
    cfg.stages[stage].inputs = {**cfg.stages[stage].inputs, **ports}


# The plan


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
    assert wanted == ["problems", "base", "base.eval", "cold_start"]
    cfg.until = "cold_start.eval"
    assert [stage.name for stage in make_plan(cfg).stages if stage.wanted] == [*wanted, "cold_start.eval"]


def test_threads_are_shared_by_ranks_and_by_what_may_run_beside(
    cfg: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "hardware", lambda: {"cores": 8, "gpus": 0})
    plan = make_plan(cfg)
    assert plan.parallel == 2
    assert plan.stage("problems").threads == 8  # everything waits for the problems
    assert plan.stage("cold_start").threads == 4  # base.eval may run beside it
    cfg.stages["cold_start"].num_ranks = 2
    assert make_plan(cfg).stage("cold_start").threads == 2
    cfg.launcher.parallel_stages = 1
    assert make_plan(cfg).stage("cold_start").threads == 4


def test_an_optional_port_may_stay_open(cfg: RunConfig) -> None:
    wire(cfg, "base", problems=None)
    assert make_plan(cfg).stage("base").inputs == {}


def test_a_sealed_folder_elsewhere_can_be_an_input(cfg: RunConfig, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "model"
    folder.mkdir(parents=True)
    output = {"kind": "model", "path": "model", "digest": "d" * 64, "parameters": 7}
    write_json(folder.parent / "artifact.json", {"outputs": {"model": output}})
    wire(cfg, "reasoning_rl", policy=f"path:{folder}")
    source = make_plan(cfg).stage("reasoning_rl").inputs["policy"]
    assert (source.stage, source.path, source.digest, source.facts["parameters"]) == (None, folder, "d" * 64, 7)


def test_a_root_knob_says_where_it_acts(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].updates_per_rollout = 1
    warnings = make_plan(cfg, ["epsilon=0.2"]).warnings
    assert any(note.startswith("epsilon acts on general_rl only") for note in warnings)
    cfg.stages["general_rl"].algorithm.epsilon = 0.1
    warnings = make_plan(cfg, ["epsilon=0.2"]).warnings
    assert any(note.startswith("epsilon acts on no stage") for note in warnings)


# Refusals


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
    del cfg.stages["problems"]
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


def test_one_response_with_a_group_baseline(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].G = 1
    assert refusal(cfg)[0].startswith("stages.reasoning_rl.G: is 1")


def test_negative_epsilon(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].algorithm.epsilon = -0.1
    assert refusal(cfg)[0].startswith("stages.reasoning_rl.algorithm.epsilon: is -0.1")


def test_epsilon_high_below_epsilon(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].algorithm.epsilon_high = 0.1
    assert refusal(cfg)[0].startswith("stages.reasoning_rl.algorithm.epsilon_high: is 0.1")


def test_missing_data_file_has_the_key_that_was_written(cfg: RunConfig) -> None:
    cfg.data.source = cfg.stages["problems"].reasoning.source = "jsonl"
    cfg.data.path = cfg.stages["problems"].reasoning.path = "nowhere.jsonl"
    (line,) = refusal(cfg)
    assert line.startswith("data.path: ") and "nowhere.jsonl" in line


def test_data_file_that_is_no_data(cfg: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "picture.jsonl"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x01")
    cfg.data.source = cfg.stages["problems"].reasoning.source = "jsonl"
    cfg.data.path = cfg.stages["problems"].reasoning.path = str(path)
    assert any("picture.jsonl" in line for line in refusal(cfg))


@pytest.mark.parametrize("overrides", [["data=jsonl"], ["model=hf"]])
def test_a_choice_that_needs_a_name(overrides: list[str], tmp_path: Path) -> None:
    lines = refusal(compose([*overrides, f"output_dir={tmp_path}"]))
    assert any(key in line for line in lines for key in ("path", "name_or_path"))


def test_student_and_teacher_of_different_tokenizers(cfg: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = kinds()["base_model"]

    def outline(stage, inputs):
        return Outline(outputs={"model": {"tokenizer_hash": str(stage.model.layers)}})

    other = {**kinds(), "base_model": copy.copy(kind)}
    object.__setattr__(other["base_model"], "outline", outline)
    monkeypatch.setattr(planning, "kinds", lambda: other)
    cfg.stages["base"].model.layers, cfg.stages["student_base"].model.layers = 4, 3
    make_plan(cfg)  # text alone may come from any teacher
    wire(cfg, "distillation", teacher="base.model")
    (line,) = refusal(cfg)
    assert line.startswith("stages.distillation.inputs.teacher: the teacher's tokenizer (4) is not the student's (3)")


@pytest.mark.parametrize(
    ("wired", "told"),
    [
        ("path:/nowhere/model", "there is no folder"),
        ("hub:Qwen/Qwen3-0.6B", "names no revision -> write hub:ORG/NAME@COMMIT"),
        ("pip:some-package", "names no version -> write pip:PACKAGE==VERSION"),
    ],
)
def test_external_sources_that_are_not_there_or_not_pinned(cfg: RunConfig, wired: str, told: str) -> None:
    wire(cfg, "cold_start", policy=wired)
    assert told in refusal(cfg)[0]


def test_ranks_and_engines_that_do_not_go_together(cfg: RunConfig) -> None:
    cfg.launcher.kind, cfg.launcher.num_ranks = "inline", 2
    assert "launcher.num_ranks: is 2, launcher=inline has one rank -> choose launcher=local" in refusal(cfg)
    cfg.launcher.num_ranks = 1
    cfg.stages["base"].engine.kind = "deepspeed"
    assert "inline cannot run DeepSpeed" in refusal(cfg)[0]
    cfg.launcher.kind, cfg.stages["base"].engine.kind, cfg.stages["base"].engine.zero_stage = "local", "torch", 2
    assert refusal(cfg)[0].startswith("stages.base.engine.zero_stage: ZeRO-2 needs DeepSpeed")
    cfg.stages["base"].engine.zero_stage, cfg.stages["base"].num_ranks = 0, 0
    assert refusal(cfg) == ["stages.base.num_ranks: is 0 -> write at least 1"]


def test_more_ranks_than_gpus_is_refused_and_than_cores_is_warned_of(
    cfg: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg.launcher.num_ranks = 4
    monkeypatch.setattr("pipeline.checks.hardware", lambda: {"cores": 2, "gpus": 0})
    assert any("4 ranks share 2 cores" in warning for warning in make_plan(cfg).warnings)
    monkeypatch.setattr("pipeline.checks.hardware", lambda: {"cores": 2, "gpus": 2})
    assert "launcher.num_ranks: is 4, there are 2 GPUs -> write launcher.num_ranks=2" in refusal(cfg)


@pytest.mark.parametrize(
    ("stage", "key", "value", "remedy"),
    [
        ("reasoning_rl", "prompts_per_step", 5, "write 4 or 6, or stages.reasoning_rl.num_ranks=1"),
        ("cold_start", "examples_per_step", 33, "write 32 or 34, or stages.cold_start.num_ranks=1"),
        ("base", "documents_per_step", 1, "write 2, or stages.base.num_ranks=1"),
    ],
)
def test_a_batch_that_the_ranks_do_not_share_evenly(
    cfg: RunConfig, stage: str, key: str, value: int, remedy: str
) -> None:
    setattr(cfg.stages[stage], key, value)
    make_plan(cfg)
    cfg.stages[stage].num_ranks = 2
    assert refusal(cfg) == [f"stages.{stage}.{key}: is {value}, which 2 ranks do not share evenly -> {remedy}"]


def test_ranks_that_machines_do_not_share_evenly(cfg: RunConfig) -> None:
    cfg.launcher.kind, cfg.launcher.options = "slurm", {"nodes": 2}
    cfg.launcher.num_ranks = 2
    make_plan(cfg)  # the evaluations have one rank: one node
    cfg.stages["problems"].num_ranks = 3
    (line,) = refusal(cfg)
    assert line.startswith("stages.problems.num_ranks: is 3, which 2 machines do not share evenly")


def test_a_checkpoint_is_no_model(cfg: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "step-00000050").mkdir()
    write_json(tmp_path / "step-00000050" / "checkpoint.json", {})
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path / 'step-00000050'}")
    (line,) = refusal(cfg)
    assert line.startswith("stages.reasoning_rl.inputs.policy: ") and "not a model -> run that stage to its end" in line


def test_a_folder_without_a_model(cfg: RunConfig, tmp_path: Path) -> None:
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path}")
    assert "holds no model: it has no config.json -> name a folder that save_pretrained wrote" in refusal(cfg)[0]


def test_an_adapter_needs_its_base(cfg: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    wire(cfg, "reasoning_rl", policy=f"path:{tmp_path / 'adapter'}")
    write_json(tmp_path / "adapter" / "adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base")})
    assert "is an adapter without its base: there is no" in refusal(cfg)[0]
    (tmp_path / "base").mkdir()
    make_plan(cfg)
    write_json(tmp_path / "adapter" / "adapter_config.json", {})
    assert "is an adapter that names no base" in refusal(cfg)[0]


def test_checkpoints_of_another_recipe(cfg: RunConfig, tmp_path: Path) -> None:
    stage = make_plan(cfg).stage("cold_start")
    partial = tmp_path / "store" / ".partial" / f"sft-{stage.fingerprint}"
    (partial / "checkpoints" / "step-00000020").mkdir(parents=True)
    write_json(partial / "job.json", {"fingerprint": stage.fingerprint})
    assert make_plan(cfg).stage("cold_start").why == "goes on from step 20"
    write_json(partial / "job.json", {"fingerprint": "0123456789abcdef"})
    (line,) = refusal(cfg)
    assert line.startswith("stages.cold_start: the checkpoints in ") and "(sft-0123456789abcdef) -> remove" in line


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
