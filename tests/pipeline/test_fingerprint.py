"""What changes a fingerprint, what must not, and how far a change travels down the chain."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import EngineConfig, RunConfig
from pipeline.plan import make_plan
from pipeline.store import write_json
from tests.pipeline.plans import smoke


def prints(cfg: RunConfig) -> dict[str, str]:
    return {stage.name: stage.fingerprint for stage in make_plan(cfg).stages}


def changed(cfg: RunConfig) -> set[str]:
    before, after = prints(smoke()), prints(cfg)
    return {name for name in after if before.get(name) != after[name]}


def test_how_and_where_a_stage_runs_is_no_part_of_its_fingerprint(cfg: RunConfig) -> None:
    cfg.name, cfg.launcher.num_ranks, cfg.launcher.threads, cfg.tracker.kind = "other", 2, 1, "wandb"
    for name in ("base", "cold_start", "reasoning_rl"):
        stage = cfg.stages[name]
        stage.engine, stage.num_ranks, stage.tokens_per_microbatch = EngineConfig("deepspeed", zero_stage=2), 2, 4096
        stage.save_every_steps, stage.gate.min = 3, 0.5
    cfg.stages["reasoning_rl"].monitor_every_steps = 1
    assert changed(cfg) == set()


def test_a_knob_of_the_last_rl_stage_changes_it_and_its_evaluation_only(cfg: RunConfig) -> None:
    cfg.stages["general_rl"].algorithm.beta = 0.01
    assert changed(cfg) == {"general_rl", "general_rl.eval"}


def test_a_change_travels_to_everything_that_follows(cfg: RunConfig) -> None:
    cfg.stages["reasoning_rl"].G = 4
    following = {"reasoning_rl", "rejection_sampling", "rejection_sft", "general_rl", "distillation"}
    assert changed(cfg) == following | {f"{name}.eval" for name in following - {"rejection_sampling"}}


def test_changing_the_evaluation_retrains_nothing(cfg: RunConfig) -> None:
    cfg.evaluation.samples = 4
    assert changed(cfg) and all(name.endswith(".eval") for name in changed(cfg))


def test_evaluations_of_two_runs_share_their_name_free_fingerprint(cfg: RunConfig) -> None:
    """Renaming a stage recomputes nothing: names are for people."""
    cfg.stages = {("warm" if name == "student_base" else name): stage for name, stage in cfg.stages.items()}
    for name in ("distillation", "distillation_control"):
        cfg.stages[name].inputs = {**cfg.stages[name].inputs, "student": "warm.model"}
    assert prints(cfg)["warm"] == prints(smoke())["student_base"]
    assert prints(cfg)["distillation"] == prints(smoke())["distillation"]


def test_seed_changes_training_and_not_the_problems(cfg: RunConfig) -> None:
    for stage in cfg.stages.values():
        if stage.kind != "problems":
            stage.seed = 1
    assert "problems" not in changed(cfg) and {"base", "general_rl"} <= changed(cfg)


def test_a_local_file_counts_by_its_content(cfg: RunConfig, tmp_path: Path) -> None:
    problems = cfg.stages["problems"]
    rows = Path("tests/data/gsm8k_sample.jsonl").read_text()
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text(rows)
    second.write_text(rows)
    problems.reasoning.source, problems.reasoning.path = "jsonl", str(first)
    one = prints(cfg)["problems"]
    problems.reasoning.path = str(second)
    assert prints(cfg)["problems"] == one  # moved
    second.write_text("\n".join(rows.splitlines()[1:]) + "\n")
    assert prints(cfg)["problems"] != one  # edited


def seal(store: Path, plan, name: str, digest: str = "d", **changes) -> None:
    """A sealed result as the store would hold it."""
    from pipeline.kinds import kinds
    from pipeline.provenance import source_digest

    stage = plan.stage(name)
    folder = store / f"{stage.kind}-{stage.fingerprint}"
    outputs = {p: {"kind": out.kind, "path": p, "digest": digest + p} for p, out in kinds()[stage.kind].outputs.items()}
    for port in outputs:
        (folder / port).mkdir(parents=True, exist_ok=True)
    inputs = {p: {"fingerprint": s.fingerprint, "digest": digest + (s.output or "")} for p, s in stage.inputs.items()}
    manifest = {"inputs": inputs, "outputs": outputs, "source_digest": source_digest(f"stages.{stage.kind}"), **changes}
    write_json(folder / "artifact.json", manifest)


def test_cached_means_sealed_from_todays_inputs(cfg: RunConfig, tmp_path: Path) -> None:
    store, plan = tmp_path / "store", make_plan(cfg)
    seal(store, plan, "problems")
    seal(store, plan, "base")
    plan = make_plan(cfg)
    assert [stage.name for stage in plan.stages if stage.cached] == ["problems", "base"]
    seal(store, plan, "problems", digest="rebuilt")
    again = make_plan(cfg).stage("base")
    assert not again.cached and "came out different" in again.why


def test_force_runs_it_and_leaves_what_follows_open(cfg: RunConfig, tmp_path: Path) -> None:
    for name in ("problems", "base", "cold_start"):
        seal(tmp_path / "store", make_plan(cfg), name)
    cfg.force = ["base"]
    plan = make_plan(cfg)
    assert plan.stage("problems").cached and plan.stage("base").forced and not plan.stage("base").cached
    assert "if base comes out different" in plan.stage("cold_start").why


def test_changed_code_is_told_and_strict_reuse_recomputes(cfg: RunConfig, tmp_path: Path) -> None:
    seal(tmp_path / "store", make_plan(cfg), "problems", source_digest="of yesterday")
    told = make_plan(cfg).stage("problems")
    assert told.cached and told.code_changed and told.why == "code changed since"
    cfg.reuse = "strict"
    strict = make_plan(cfg).stage("problems")
    assert not strict.cached and strict.forced
