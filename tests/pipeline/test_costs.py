"""Costs of a plan: the formulas' golden numbers, what a dry run shows of them, and when it warns."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from pipeline import costs, estimates
from pipeline.artifacts import Held, Work, parameter_count
from pipeline.compose import CONF, compose
from pipeline.config import EngineConfig, LauncherConfig, RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan
from pipeline.plan_types import Plan
from pipeline.provenance import hardware
from pipeline.store import MANIFEST
from pipeline.table import plan_table

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
TINY = {"layers": 3, "hidden_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate_size": 256}
TINY |= {"vocab_size": 264}


def facts(model: str) -> dict:
    return yaml.safe_load((CONF / f"model/{model}.yaml").read_text())["facts"]


@cache
def composed(*overrides: str) -> RunConfig:
    return compose(list(overrides))


def planned(folder: Path, *overrides: str) -> Plan:
    cfg = copy.deepcopy(composed(*overrides))
    cfg.output_dir = str(folder)
    return make_plan(cfg)


def test_qwen3_has_as_many_parameters_as_published():
    assert parameter_count(facts("qwen3_8b"), tied=False) == facts("qwen3_8b")["parameters"] == 8_190_735_360
    assert parameter_count(facts("qwen3_0_6b")) == facts("qwen3_0_6b")["parameters"] == 596_049_920
    assert costs.is_tied(facts("qwen3_0_6b")) and not costs.is_tied(facts("qwen3_8b"))
    critic = Held("critic", facts("qwen3_8b"), is_body=True)
    assert costs.parameters(critic) == 8_190_735_360 - 151_936 * 4096  # without the head


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_by_zero_stage(stage: int, gigabytes: float):
    """arXiv:1910.02054, figure 1: 7.5e9 parameters on 64 ranks, mixed precision."""
    assert sum(costs.states(7.5e9, stage, ranks=64)) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_optimizer_bytes_of_our_engines():
    """float32 in plain torch: 4 + 8 a parameter; ZeRO keeps a master of its own part, 12 / ranks; bfloat16 2 + 12."""
    count = parameter_count(TINY)
    work = Work(held=(Held("policy", TINY, trained=True),), steps=1)

    def held(engine: EngineConfig, ranks: int, gpu: bool = False) -> tuple[float, float]:
        parts = costs.held_bytes(work, engine, ranks, 2 if gpu else 4, gpu)
        return parts["weights"] / count, parts["optimizer"] / count

    assert held(EngineConfig(), 1) == (4, 8)
    assert held(EngineConfig(), 1, gpu=True) == (2, 12)
    assert held(EngineConfig("deepspeed", 1), 4) == (4, 3)
    assert held(EngineConfig("deepspeed", 3), 4) == (1, 3)
    assert held(EngineConfig("deepspeed", 3, offload=True), 4, gpu=True) == (0, 0)


def test_cache_and_logits():
    qwen = facts("qwen3_8b")
    assert costs.cache_bytes(qwen, size=2) == 147_456
    policy = Held("policy", qwen, trained=True)
    work = Work(
        held=(policy,), steps=1, sequences=8, length=1024, scored=1024, tokens_per_microbatch=4096,
        logits_at_once=2**40, logit_bytes=4,
    )  # fmt: skip
    head = 4 * 151_936 * 4096

    def logits(of: Work) -> float:
        return costs.updating(of, policy, EngineConfig(), 1, 2, gpu=True)["logits"] - head

    assert logits(work) == 4 * 1024 * 151_936 * 4 == 2_489_319_424
    assert 2**27 - 4 * 151_936 < logits(dataclasses.replace(work, logits_at_once=2**25)) <= 2**27  # one chunk of it


@pytest.mark.parametrize("moment", ["sampling", "scoring"])
def test_of_models_that_work_in_turn_the_largest_counts(moment: str):
    small, large = Held("policy", TINY, samples=True), Held("teacher", facts("qwen3_0_6b"), samples=True)
    work = Work(
        responses=8, prompt=32, response=96, rows_at_once=8, read_at_once=8, length=128, scored=96,
        tokens_per_microbatch=1024, logits_at_once=2**25,
    )  # fmt: skip

    def needed(*held: Held) -> tuple[float, ...]:
        found = costs.moments(dataclasses.replace(work, held=held), EngineConfig(), 1, gpu=False, gpu_memory=None)
        return tuple(found[moment].get(part, 0) for part in ("cache", "activations", "logits"))

    assert needed(small, large) == needed(large, small) == needed(large) > needed(small)
    body = dataclasses.replace(large, is_body=True, samples=False)
    assert needed(small, body)[2] < needed(large)[2]  # a reward model has no logits


def test_adapters_are_counted_by_rank():
    policy = Held("policy", TINY, trained=True, adapter_rank=8, adapter_modules=("q_proj", "v_proj"))
    assert costs.trained_parameters(policy) == 3 * 8 * ((128 + 128) + (128 + 64))


def test_micro_batches_are_cut_as_they_will_be():
    work = Work(sequences=32, length=192, tokens_per_microbatch=1024)
    assert costs.rows_of_microbatch(work, work.sequences, ranks=1) == (5, 32)
    assert costs.rows_of_microbatch(work, work.sequences, ranks=16) == (2, 2)
    assert costs.rows_of_microbatch(dataclasses.replace(work, length=2000), 32, 1) == (1, 32)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ["tiny", "qwen3_0_6b"])
def test_a_dry_run_of_every_recipe_shows_costs(tmp_path: Path, recipe: str, model: str):
    plan = planned(tmp_path, f"pipeline={recipe}", f"model={model}")
    for stage in plan.stages:
        has_model = stage.kind not in ("problems", "preferences", "mode_data")
        assert (stage.outline.work is not None) == (stage.costs.peak is not None) == has_model, stage.name
        if has_model:
            assert stage.costs.work or stage.outline.steps == 0, stage.name  # a pretrained base is only taken
            assert stage.costs.disk is not None
    table = plan_table(plan, "full")
    assert "memory a rank while" in table and f"{len(plan.stages)} of unknown time" in table


@pytest.mark.parametrize(
    ("recipe", "experiment"),
    [(f"qwen3_{name}", f"qwen3_{size}_{name}") for name in ("style", "small") for size in ("0_6b", "8b")],
)
def test_experiments_on_real_models_fit_the_gpus_that_they_name(tmp_path: Path, recipe: str, experiment: str):
    plan = planned(tmp_path, f"pipeline={recipe}", f"experiment={experiment}")
    assert not [note for note in plan.warnings if "a rank while" in note]
    assert any(note.startswith("costs are those on GPUs of ") for note in plan.warnings) == (hardware()["gpus"] == 0)
    room = composed(f"pipeline={recipe}", f"experiment={experiment}").launcher.gpu_memory_gib * 2**30
    peaks = [stage.costs.peak or 0 for stage in plan.stages if stage.outline.work]
    assert room / 4 < max(peaks) < room


def test_what_does_not_fit_names_the_knobs_that_help(tmp_path: Path):
    setting = ["pipeline=qwen3_style", "experiment=qwen3_8b_style"]

    def told(*overrides: str) -> str:
        notes = planned(tmp_path, *setting, *overrides).warnings
        return "\n".join(note for note in notes if "a rank while" in note)

    warned = told("engine=zero3")
    assert "reasoning_rl" in warned and "tokens_per_microbatch" in warned and "gradient_checkpointing=true" in warned
    trained = [stage.name for stage in planned(tmp_path, *setting).stages if stage.outline.steps]
    assert told("engine=zero3", *(f"stages.{name}.tokens_per_microbatch=4096" for name in trained)) == ""
    assert "zero3_offload" in told("launcher.num_ranks=1")


@pytest.mark.parametrize("written", ["inf", "nan", "1e300", "1e308", "-1", "0.5", "1e-300"])
def test_memory_that_no_gpu_has_is_refused(tmp_path: Path, written: str):
    with pytest.raises(Refused, match=r"^launcher\.gpu_memory_gib: is \S+ -> write 80, or 0 for here$"):
        planned(tmp_path, "pipeline=r1_style", f"launcher.gpu_memory_gib={written}")


def test_the_disk_must_hold_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(estimates.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 2**20}))
    (note,) = planned(tmp_path).warnings
    assert note.startswith("output_dir: results and checkpoints take about ") and note.endswith("has 1 MiB left")


def test_which_machine_a_plan_is_for(monkeypatch: pytest.MonkeyPatch):
    here = {"gpus": 0, "gpu_names": [], "memory_gib": 24.0, "cores": 2}
    monkeypatch.setattr(estimates, "hardware", lambda: here)
    assert estimates.machine_of(LauncherConfig()) == estimates.Machine(False, 24 * 2**30)
    assert estimates.machine_of(LauncherConfig("slurm")) == estimates.Machine(True, None, is_here=False)
    there = estimates.Machine(True, 80 * 2**30, is_here=False)
    assert estimates.machine_of(LauncherConfig("slurm", gpu_memory_gib=80)) == there
    assert estimates.machine_of(LauncherConfig(gpu_memory_gib=80)) == there
    assert estimates.machine_of(LauncherConfig("torchrun", hosts=["localhost"])).is_here
    assert not estimates.machine_of(LauncherConfig("torchrun", hosts=["localhost", "b"])).is_here
    assert not estimates.machine_of(LauncherConfig("deepspeed", hostfile="/no/such")).is_here
    here |= {"gpus": 1, "gpu_names": ["NVIDIA A100-SXM4-40GB"]}
    monkeypatch.setattr(estimates, "gpu_memory", lambda: 40 * 2**30)
    assert estimates.machine_of(LauncherConfig()) == estimates.Machine(True, 40 * 2**30)
    assert estimates.machine_of(LauncherConfig(gpu_memory_gib=42)) == estimates.Machine(
        True, 42 * 2**30
    )  # as it is sold
    assert estimates.machine_of(LauncherConfig(gpu_memory_gib=20)).is_here
    assert estimates.machine_of(LauncherConfig(gpu_memory_gib=80)) == there


def test_runs_at_the_same_time_share_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    peak = max(stage.costs.peak or 0 for stage in planned(tmp_path).stages) + costs.CPU_IMPORTS
    here = hardware() | {"gpus": 0, "gpu_names": [], "memory_gib": 1.5 * peak / 2**30}
    monkeypatch.setattr(estimates, "hardware", lambda: here)
    assert not [note for note in planned(tmp_path).warnings if "a rank while" in note]
    notes = [note for note in planned(tmp_path, "launcher.concurrent_runs=2").warnings if "a rank while" in note]
    assert notes and all("the machine has " in note and " for 2 runs: " in note for note in notes)


@pytest.mark.parametrize("elsewhere", ["launcher=slurm", "launcher.gpu_memory_gib=4000"])
def test_times_of_this_machine_are_not_told_for_another(tmp_path: Path, elsewhere: str):
    remember(planned(tmp_path, "launcher.threads=1"))
    assert planned(tmp_path, "launcher.threads=1").stage("base").seconds == 10
    there = planned(tmp_path, "launcher.threads=1", elsewhere)
    assert {stage.seconds for stage in there.stages} == {None} and there.stage("base").costs.peak


@pytest.mark.parametrize(
    ("told", "memory"),
    [("echo 97871; echo 81559", 81559 * 2**20), ("echo '[N/A]'", None), ("exit 9", None), ("true", None), (None, None)],
)
def test_gpu_memory_is_what_the_driver_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, memory: int | None
):
    if told is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{told}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert estimates.gpu_memory.__wrapped__() == memory


def model_folder(folder: Path, **config: object) -> Path:
    """A model as far as a plan reads it."""
    sizes = {"num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(sizes | {"vocab_size": 264, "num_key_value_heads": 2} | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


WRONG_SIZES: list[dict[str, object]] = [
    {"intermediate_size": [128, 128, 256]},
    {"num_key_value_heads": [2, 2, 1]},
    {"num_hidden_layers": "2"},
    {"vocab_size": "1000"},
    {"hidden_size": True},
    {"hidden_size": 2, "head_dim": None},
    {"max_position_embeddings": "long", "vocab_size": None},
    {"text_config": [1], "vocab_size": 0},
    {"text_config": {"vocab_size": 264}},
]


@pytest.mark.parametrize("config", WRONG_SIZES, ids=str)
def test_costs_of_a_model_of_another_shape_are_unknown(tmp_path: Path, config: dict[str, object]):
    """Its files were written by others: lists (a size for each layer), strings, nothing."""
    chosen = [f"model.name_or_path={model_folder(tmp_path / 'model', **config)}", "model=hf"]
    plan = planned(tmp_path / "out", "pipeline=r1_style", *chosen)
    assert plan.stage("cold_start").costs == costs.NO_COSTS and plan.stage("cold_start").costs.peak is None


def test_costs_of_a_model_folder_are_known(tmp_path: Path):
    folder = model_folder(tmp_path / "model", text_config=[], eos_token_id=["a"])
    plan = planned(tmp_path / "out", "pipeline=r1_style", f"model.name_or_path={folder}", "model=hf")
    assert plan.stage("cold_start").costs.peak and plan.stage("base").outline.outputs["model"]["head_dim"] == 32


@pytest.mark.parametrize(
    ("fact", "written"),
    [("vocab_size", "null"), ("parameters", "many"), ("layers", "[28]"), ("context_length", "-1"), ("end_tokens", "5")],
)
def test_declared_facts_of_a_wrong_type_are_refused(tmp_path: Path, fact: str, written: str):
    with pytest.raises(Refused, match=rf"model\.facts\.{fact}: is .* -> write a (whole number|list)"):
        planned(tmp_path, "pipeline=r1_style", "model=qwen3_0_6b", f"model.facts.{fact}={written}")


def remember(plan: Plan, seconds: float = 10.0) -> None:
    """A store in which every stage of the plan has been before, under another fingerprint, on this machine."""
    lines = []
    for stage in plan.stages:
        if work := estimates.amount(stage):
            entry = plan.store / f"{stage.kind}-{stage.name}"
            entry.mkdir(parents=True)
            told = {"kind": stage.kind, "hardware": hardware(), "ranks": stage.ranks, "threads": stage.threads}
            told |= {"engine": dataclasses.asdict(stage.cfg.engine), "seconds": seconds}
            (entry / MANIFEST).write_text(json.dumps(told))
            lines.append(json.dumps({"entry": entry.name, "work": work}) + "\n")
    (plan.store / estimates.WORK).write_text("".join(lines))


def test_times_are_found_beside_lines_and_manifests_that_are_foreign(tmp_path: Path):
    plan = planned(tmp_path, "pipeline=r1_style")
    remember(plan)
    memo = plan.store / estimates.WORK
    foreign = ["5", "[]", "{}", "nonsense", '{"entry": "x", "work": "y"}', '{"entry": "x", "work": Infinity}']
    for name, manifest in {"number": "5", "empty": "{}", "odd": '{"hardware": 1}', "torn": '{"kind'}.items():
        (plan.store / name).mkdir()
        (plan.store / name / MANIFEST).write_text(manifest)
        foreign.append(json.dumps({"entry": name, "work": 1.0}))
    (plan.store / "gone").mkdir()
    foreign.append(json.dumps({"entry": "gone", "work": 1.0}))
    torn = memo.read_bytes().splitlines()[0][:20]
    memo.write_bytes("\n".join(foreign).encode() + b"\n\xff\n" + memo.read_bytes() + torn)
    stage = plan.stage("cold_start")
    assert stage.seconds is None and planned(tmp_path, "pipeline=r1_style").stage("cold_start").seconds == 10
    estimates.record_work(plan.store, stage)
    last = memo.read_bytes().splitlines()[-1]
    assert json.loads(last)["work"] == estimates.amount(stage) and memo.read_bytes().endswith(b"\n")


def test_times_from_far_smaller_results_are_marked(tmp_path: Path):
    remember(planned(tmp_path, "pipeline=r1_style", "experiment=smoke"))
    far = plan_table(planned(tmp_path, "pipeline=r1_style"))
    smoke = planned(tmp_path, "pipeline=r1_style", "experiment=smoke", "seed=1")
    near = plan_table(smoke)
    note = "times with ? come from results of more than 4 times, or less than 1/4 of, the work"
    assert note in far and re.search(r"^reasoning_rl .* ~\S+\?$", far, re.M)
    assert note not in near and smoke.stage("reasoning_rl").seconds == 10 and "~10.0s" in near


def test_stages_side_by_side_share_a_machine_s_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = planned(tmp_path, "pipeline=r1_style")
    sizes = {stage.name: estimates._needed(stage, estimates.Machine(False, None)) for stage in plan.stages}
    largest = max(sizes.values()) / 2**30
    monkeypatch.setattr(estimates, "hardware", lambda: {**hardware(), "gpus": 0, "memory_gib": 1.2 * largest})
    side_by_side = [one for one in planned(tmp_path, "pipeline=r1_style").warnings if "side by side" in one]
    assert len(side_by_side) == 1 and "launcher.parallel_stages=1" in side_by_side[0]
    one, _, other = side_by_side[0].partition(",")[0].partition(" and ")
    assert sizes[one] + sizes[other] > 1.2 * max(sizes.values())
    assert planned(tmp_path, "pipeline=r1_style", "launcher.parallel_stages=1").warnings == []


@pytest.mark.parametrize("content", [None, b"", b"\n"])
def test_work_is_recorded_a_line_each(tmp_path: Path, content: bytes | None):
    plan = planned(tmp_path, "pipeline=r1_style")
    memo = plan.store / estimates.WORK
    plan.store.mkdir(parents=True, exist_ok=True)
    if content is not None:
        memo.write_bytes(content)
    for _ in range(2):
        estimates.record_work(plan.store, plan.stage("base"))
    assert len(memo.read_bytes().strip().splitlines()) == 2


def whole_numbers(config: object) -> Iterator[tuple[object, str]]:
    """(node, field) of every whole number in a configuration."""
    for item in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from whole_numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield config, item.name


@pytest.mark.parametrize("overrides", [(), ("stages.cold_start.source=few_shot",)])
def test_numbers_that_mean_nothing_are_refused_or_planned(tmp_path: Path, overrides: tuple[str, ...]):
    """Costs are divided by many of them. With and without results that times could be taken from."""
    cfg = copy.deepcopy(composed("pipeline=r1_style", *overrides))
    cfg.output_dir = str(tmp_path)
    remember(make_plan(cfg))
    one_of_each = {stage.kind: stage for stage in reversed(cfg.stages.values())}
    tried, refused = 0, []
    for node, name in [one for part in (cfg, *one_of_each.values()) for one in whole_numbers(part)]:
        before = getattr(node, name)
        for value in (0, -1):
            setattr(node, name, value)
            tried += 1
            try:
                make_plan(cfg)
            except Refused as reason:
                refused.append(str(reason))
        setattr(node, name, before)
    assert tried > 200 and len(refused) > tried / 2
    make_plan(cfg)


def test_time_is_unknown_until_a_stage_of_the_kind_has_run(tmp_path: Path):
    base = ["experiment=smoke", "launcher.threads=1"]
    assert planned(tmp_path, *base).stage("problems").seconds is None
    command = [sys.executable, "run.py", *base, f"output_dir={tmp_path}", "until=problems"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    cached = planned(tmp_path, *base)
    assert "21 stages, 1 cached" in plan_table(cached) and cached.stage("problems").cached
    another = planned(tmp_path, *base, "data.seed=1")
    assert f" ~{another.stage('problems').seconds:.1f}s\n" in plan_table(another)
    assert another.stage("base").seconds is None
    one, more = another.stage("problems"), planned(tmp_path, *base, "data.train_problems=1024").stage("problems")
    grown = estimates.amount(more) / estimates.amount(one)
    assert grown > 1.3 and more.seconds == pytest.approx(one.seconds * grown)
    assert planned(tmp_path, "experiment=smoke", "launcher.threads=2", "data.seed=1").stage("problems").seconds is None
