"""Values that cannot be right: each is refused under the key that a user would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import gates
from pipeline.axes import check_axes
from pipeline.checks import run_faults
from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.jobs import plan_jobs, sweep_axes
from pipeline.messages import Refused
from pipeline.plan import make_plan
from pipeline.store import write_json
from stages.parts.data.fingerprints import tokenizer_hash
from tests.pipeline.plans import refusal, wire

GSM8K = "tests/data/gsm8k_sample.jsonl"


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
        ("evaluation.suites", ["reasoning", "reasoning"]),
        ("stages.cold_start.seed", -1),
        ("stages.cold_start.seed", 2**63),
        ("tracker.mode", "somewhere"),
        ("output_dir", ""),
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
def test_a_value_that_cannot_be_right(cfg: RunConfig, key: str, value: Any) -> None:
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
        (["data.columns.prompt=q"], "data.columns does nothing: source=reasoning_gym does not read it"),
        (["data=jsonl", f"data.path={GSM8K}", "data.difficulty=3"], "data.difficulty does nothing: source=jsonl "),
        (["data=jsonl", f"data.path={GSM8K}", "data.split=test"], "data.split does nothing: source=jsonl does not "),
        (["data=gsm8k", "data.families=[chain_sum]"], "data.families does nothing: source=hub does not read it"),
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
        fixed, axes = sweep_axes(["experiment=smoke", "data=jsonl", f"data.path={GSM8K}", "data.difficulty=1,2"])
        check_axes(axes, list(plan_jobs(fixed, axes)), insist=False)
    assert [fault.key for fault in caught.value.faults] == ["data.difficulty"]


@pytest.mark.parametrize(
    ("metric", "more", "told"),
    [
        ("foo", [], "'foo' is no name of a metric -> write GROUP/NAME, as reasoning/pass@1"),
        (
            "resoning/pass@1",
            [],
            "'resoning' is not evaluated -> write reasoning/pass@1 (there are: general/pass@1, hel",
        ),
        (
            "general/pass@1",
            ["evaluation.suites=[reasoning]"],
            "'general' is not evaluated -> write reasoning/pass@1 (there are: reasoning/pass@1), or add",
        ),
        ("reasoning/pass@8", [], "pass@8 is not measured -> write reasoning/pass@2, or add 8 to evaluation.ks"),
        ("reasoning/pass@1", ["evaluation.enabled=false"], "is of an evaluation, and cold_start has none -> let its"),
        ("reasoning/pass@1", ["stages.cold_start.gate.max_drop=0.1", "stages.base.evaluate=false"], "evaluate=true"),
        ("reasoning/pass@1", ["until=cold_start"], "which until leaves out -> write until=cold_start.eval, or"),
        ("heldout/reasoning/pass@1", [], "is of monitors, which cold_start does not have on -> write reasoning/pass@1"),
    ],
)
def test_a_gate_on_what_will_not_be_measured(metric: str, more: list[str], told: str, tmp_path: Path) -> None:
    gate = ["stages.cold_start.gate.min=0.1", f"stages.cold_start.gate.metric={metric}"]
    with pytest.raises(Refused) as caught:
        make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *gate, *more]))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("stages.cold_start.gate.metric: ") and told in line


@pytest.mark.parametrize("metric", ["reasoning/pass@2_low", "train/loss", "reasoning/chain_sum/pass@1"])
def test_a_gate_on_what_may_be_measured(metric: str, tmp_path: Path) -> None:
    gate = ["stages.cold_start.gate.min=0.1", f"stages.cold_start.gate.metric={metric}"]
    make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *gate]))
    make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", "stages.cold_start.gate.metric=off"]))


def test_a_mapping_of_shares_says_what_it_keeps(tmp_path: Path) -> None:
    override = "stages.general_rl.suites={reasoning: 1, helpful: 1, safety: 1}"
    told = "stages.general_rl.suites keeps general as well, mappings are merged; ~stages.general_rl.suites.general leav"
    for more, notes in (([], [told]), (["~stages.general_rl.suites.general"], [])):
        overrides = ["experiment=smoke", f"output_dir={tmp_path}", override, *more]
        found = [note for note in make_plan(compose(overrides), overrides).warnings if " keeps " in note]
        assert [note[: len(told)] for note in found] == notes


def test_a_root_knob_says_where_it_acts(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].updates_per_rollout = 1
    warnings = make_plan(cfg, ["epsilon=0.2"]).warnings
    assert any(note.startswith("epsilon acts on general_rl only") for note in warnings)
    cfg.stages["general_rl"].algorithm.epsilon = 0.1
    warnings = make_plan(cfg, ["epsilon=0.2"]).warnings
    assert any(note.startswith("epsilon acts on no stage") for note in warnings)


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


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["data=jsonl"], ["data.path: is missing -> write data.path=FILE (.jsonl or .parquet)"]),
        (
            ["data@general_data=jsonl"],
            ["general_data.path: is missing -> write general_data.path=FILE (.jsonl or .parquet)"],
        ),
        (["data=hub"], ["data.name: is missing -> write data.name=ORG/NAME"]),
        (["model=hf"], ["model.name_or_path: is missing -> write model.name_or_path=ORG/NAME or a folder"]),
        (["student=hf"], ["student.name_or_path: is missing -> write student.name_or_path=ORG/NAME or a folder"]),
    ],
)
def test_a_choice_that_needs_a_name(overrides: list[str], lines: list[str], tmp_path: Path) -> None:
    assert refusal(compose(["experiment=smoke", *overrides, f"output_dir={tmp_path}"])) == lines


def test_checkpoints_of_another_recipe(cfg: RunConfig, tmp_path: Path) -> None:
    stage = make_plan(cfg).stage("cold_start")
    partial = tmp_path / "store" / ".partial" / f"sft-{stage.fingerprint}"
    (partial / "checkpoints" / "step-00000020").mkdir(parents=True)
    write_json(partial / "job.json", {"fingerprint": stage.fingerprint})
    assert make_plan(cfg).stage("cold_start").why == "goes on from step 20"
    write_json(partial / "job.json", {"fingerprint": "0123456789abcdef"})
    (line,) = refusal(cfg)
    assert line.startswith("stages.cold_start: the checkpoints in ") and "(sft-0123456789abcdef) -> remove" in line


def model_folder(folder: Path, vocabulary: list[str]) -> Path:
    """What a plan reads of a pretrained model: its config, its tokenizer and its chat template."""
    folder.mkdir()
    tokens = {token: number for number, token in enumerate(vocabulary)}
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(tokens), "max_position_embeddings": 512}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordLevel", "vocab": tokens}}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def test_student_and_teacher_of_different_tokenizers(tmp_path: Path) -> None:
    teacher, student = model_folder(tmp_path / "teacher", ["a", "b"]), model_folder(tmp_path / "student", ["b", "a"])
    overrides = ["experiment=smoke", "model=hf", f"model.name_or_path={teacher}", f"output_dir={tmp_path}"]
    cfg = compose([*overrides, f"student.name_or_path={student}"])
    make_plan(cfg)  # text alone may come from any teacher
    wire(cfg, "distillation", teacher="base.model")
    (line,) = refusal(cfg)
    theirs, ours = tokenizer_hash(teacher), tokenizer_hash(student)
    problem = f"the teacher's tokenizer ({theirs}) is not the student's ({ours})"
    remedy = "take a student of the teacher's family"
    assert theirs != ours and line.startswith(f"stages.distillation.inputs.teacher: {problem} -> {remedy}")
    cfg = compose([*overrides, f"student.name_or_path={teacher}"])
    wire(cfg, "distillation", teacher="base.model")
    make_plan(cfg)  # the same tokens
    wire(cfg, "distillation", teacher=f"path:{student}")  # a folder of one's own says what it is, too
    (line,) = refusal(cfg)
    assert line.startswith(f"stages.distillation.inputs.teacher: the teacher's tokenizer ({ours}) is not")


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.json", "{", "config.json' is not a JSON object -> mend it"),
        ("tokenizer.json", "[]", "tokenizer.json' is not a JSON object -> mend it"),
        ("tokenizer.json", None, "has no tokenizer -> save the model's tokenizer there too"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "b.safetensors"}}',
            "b.safetensors' is no safetensors file",
        ),
        ("model.safetensors", None, "has no weights (*.safetensors or "),
        ("model.safetensors", "version https://git-lfs.github.com", "is no safetensors file -> fetch its content"),
        ("config.json", None, "has no config.json -> name a folder that save_pretrained"),
    ],
)
def test_a_folder_that_is_half_a_model(tmp_path: Path, file: str, content: str | None, told: str) -> None:
    """As the chain's model and as a port's source."""
    folder = model_folder(tmp_path / "half", ["a", "b"])
    overrides = ["experiment=smoke", "model=hf", f"model.name_or_path={folder}", f"output_dir={tmp_path}"]
    make_plan(compose(overrides))
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    lines = refusal(compose(overrides))
    assert [line for line in lines if line.startswith("model.name_or_path: ") and told in line]
    cfg = compose(["experiment=smoke"])
    wire(cfg, "cold_start", policy=f"path:{folder}")
    assert told in refusal(cfg)[0]


def test_a_root_knob_is_told_once(cfg: RunConfig) -> None:
    assert refusal(compose(["experiment=smoke", "beta=-1"])) == ["beta: is -1.0 -> write 0 or more"]
    own = refusal(compose(["experiment=smoke", "stages.general_rl.algorithm.beta=-1"]))
    assert own == ["stages.general_rl.algorithm.beta: is -1.0 -> write 0 or more"]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stages.reasoning_rl.top_k=-5", "stages.reasoning_rl.top_k: is -5 -> write 0 (off)"),
        ("stages.reasoning_rl.suites.reasoning=nan", "stages.reasoning_rl.suites: is {'reasoning': nan}"),
        ("stages.cold_start.lora={rank: 4, target_modules: []}", "stages.cold_start.lora.target_modules: is empty"),
        ("stages.cold_start.lora.rank=-1", "stages.cold_start.lora.rank: is -1"),
        ("stages.cold_start.lora.alpha=nan", "stages.cold_start.lora.alpha: is nan"),
        ("stages.cold_start.lora.dropout=1", "stages.cold_start.lora.dropout: is 1.0"),
        ("beta=nan", "beta: is nan"),
    ],
)
def test_values_out_of_range(override: str, told: str) -> None:
    (line,) = refusal(compose(["experiment=smoke", override]))
    assert line.startswith(told)


def test_heldout_is_short_for_a_suite_that_is_evaluated_and_trained_on(tmp_path: Path) -> None:
    suites = ["evaluation.suites=[reasoning,general]", "~stages.general_rl.suites.reasoning"]
    for name, suite in (("cold_start", "reasoning"), ("reasoning_rl", "reasoning"), ("general_rl", "general")):
        gate = [f"stages.{name}.gate.min=0.1", f"stages.{name}.gate.metric=heldout/pass@2"]
        plan = make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *suites, *gate]))
        stage = plan.stage(name)
        assert gates.metric_of(plan, stage) == f"{suite}/pass@2"
        metrics = {name: {}, f"{name}.eval": {f"{suite}/pass@2": 0.05}}
        assert f"{suite}/pass@2 is 0.05, below gate.min=0.1" in (gates.judge(plan, stage, metrics) or "")


def test_a_gate_on_a_drop_needs_a_model_that_came_before(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="gated by max_drop, and there is no model of this run to compare with"):
        make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", "stages.base.gate.max_drop=0.1"]))


def test_a_gate_of_an_evaluation_is_on_what_it_measures_itself(tmp_path: Path) -> None:
    extra = ["+stage@stages.extra=evaluate", "stages.extra.inputs.problems=mixed_problems.problems", "until=extra"]
    gate = ["stages.extra.inputs.model=cold_start.model", "stages.extra.gate.min=0.01"]
    assert make_plan(compose(["experiment=smoke", f"output_dir={tmp_path}", *extra, *gate])).stage("extra").wanted


def test_gates_that_decide_nothing(cfg: RunConfig) -> None:
    gate = cfg.stages["cold_start"].gate
    gate.min, gate.max_drop = float("nan"), -0.1
    assert [line.partition(": ")[0] for line in refusal(cfg)] == [
        "stages.cold_start.gate.min",
        "stages.cold_start.gate.max_drop",
    ]


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


def test_far_too_many_ranks_are_refused_at_once(cfg: RunConfig) -> None:
    """A fitting number is looked for among those that can fit."""
    cfg.launcher.num_ranks = 10**12
    assert any("or launcher.num_ranks=4" in line for line in refusal(cfg))


def test_ranks_that_machines_do_not_share_evenly(cfg: RunConfig) -> None:
    cfg.launcher.kind, cfg.launcher.options = "slurm", {"nodes": 2}
    cfg.launcher.num_ranks = 2
    make_plan(cfg)  # the evaluations have one rank: one node
    cfg.stages["problems"].num_ranks = 3
    (line,) = refusal(cfg)
    assert line.startswith("stages.problems.num_ranks: is 3, which 2 machines do not share evenly")


def test_what_is_named_by_mistake_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a folder that is none: to hash all that lies in it may take hours."""
    (tmp_path / "disk").mkdir()
    cfg = compose(["experiment=smoke", "model=hf", f"model.name_or_path={tmp_path / 'disk'}", f"output_dir={tmp_path}"])
    monkeypatch.setattr("pipeline.sources.digest_folder", lambda folder: pytest.fail("it was read"))
    (line,) = refusal(cfg)
    assert line.startswith("model.name_or_path: ") and "has no config.json -> name a folder" in line


def test_numbers_of_the_launcher_and_a_folder_that_is_none(tmp_path):
    cfg = RunConfig(output_dir=str(tmp_path / "file" / "deeper"))
    cfg.launcher.threads, cfg.launcher.parallel_stages, cfg.launcher.concurrent_runs = -1, -3, 0
    (tmp_path / "file").write_text("")
    told = {fault.key: fault.remedy for fault in run_faults(cfg, [])}
    assert told["launcher.threads"] == told["launcher.parallel_stages"] == "write 0 or more"
    assert told["launcher.concurrent_runs"] == "write 1 or more"
    assert told["output_dir"] == "name one that can"


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (["objective.metric=nope"], "objective.metric: 'nope' is no name of a metric"),
        (["objective.metric=reasoning/pass@99"], "objective.metric: pass@99 is not measured"),
        (["objective.metric=heldout/reasoning/pass@1"], ""),
        (["until=cold_start"], "objective.stage: is reasoning_rl, which until leaves out"),
    ],
)
def test_an_objective_that_will_not_be_measured(wanted: list[str], told: str, tmp_path: Path) -> None:
    cfg = compose(["experiment=smoke", f"output_dir={tmp_path}", "objective.stage=reasoning_rl", *wanted])
    faults = gates.objective_faults(make_plan(cfg), cfg.objective)
    assert "".join(f"{fault.key}: {fault.problem}" for fault in faults).startswith(told) and bool(faults) == bool(told)
