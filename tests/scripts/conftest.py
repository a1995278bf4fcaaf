"""A finished run with two real models: one that was never trained, and one that has learnt four sums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.store import digest_folder
from tests.stages.answering import SUMS, trained_model

GIT = {"commit": "0123456789abcdef", "dirty": False}


def write_result(
    outputs: Path, run: str, stage: str, kind: str, inputs: dict[str, tuple[str, str]] | None = None, **more
) -> None:
    """Seal store/<kind>-<stage> (whose output folders are there) and link it; inputs: port -> (stage, port)."""
    entry = outputs / "store" / f"{kind}-{stage}"
    links = outputs / "runs" / run / "stages"
    links.mkdir(parents=True, exist_ok=True)
    sources = {}
    for port, (maker, output) in (inputs or {}).items():
        made = json.loads((links / maker / "artifact.json").read_text())
        sources[port] = {"fingerprint": made["fingerprint"], "digest": made["outputs"][output]["digest"]}
    made = {
        path.name: {"kind": path.name, "path": path.name, "digest": digest_folder(path), **more.get("facts", {})}
        for path in sorted(entry.iterdir())
        if path.is_dir() and path.name != "results"
    }
    shared = {"recipe_version": 1, "source_digest": "code", "seed": 0, "engine": {}, "ranks": 1, "threads": 1}
    about = {"git": GIT, "packages": {"torch": "2"}, "hardware": {"cpu": "a CPU", "cores": 2}, "created": "2026-01-01"}
    manifest = {"kind": kind, "stage": stage, "fingerprint": stage, "inputs": sources, "outputs": made}
    manifest |= {**shared, **about, "metrics": more.get("metrics", {})}
    (entry / "artifact.json").write_text(json.dumps(manifest))
    wired = {port: ".".join(source) for port, source in (inputs or {}).items()}
    (entry / "config.yaml").write_text(json.dumps({"kind": kind, "inputs": wired, "seed": 0, **more.get("config", {})}))
    (links / stage).symlink_to(entry, target_is_directory=True)
    plan = outputs / "runs" / run / "plan.json"
    stages = json.loads(plan.read_text())["stages"] if plan.exists() else []
    stages.append({"name": stage, "kind": kind, "fingerprint": stage, "inputs": wired})
    plan.write_text(json.dumps({"stages": stages}))


@pytest.fixture(scope="session")
def outputs(tmp_path_factory) -> Path:
    """runs/sums: base -> tuned, with an evaluation of tuned."""
    import torch
    from transformers import Qwen3ForCausalLM

    from stages.parts.policy.model import Policy, save_policy

    outputs = tmp_path_factory.mktemp("outputs")
    tuned = trained_model()
    torch.manual_seed(0)
    base = Policy(Qwen3ForCausalLM(tuned.model.config), tuned.tokenizer, tuned.end_ids, tuned.pad_id, tuned.device)
    for stage, kind, policy in (("base", "base_model", base), ("tuned", "sft", tuned)):
        folder = outputs / "store" / f"{kind}-{stage}" / "model"
        facts = save_policy(folder, policy.model.state_dict(), policy)
        inputs = {"policy": ("base", "model")} if stage == "tuned" else {}
        write_result(outputs, "sums", stage, kind, inputs, facts=facts, config={"steps": 60, "learning_rate": 5e-3})
    results = outputs / "store" / "evaluate-tuned.eval" / "results"
    results.mkdir(parents=True)
    rows = [{"problem_id": f"{a}+{b}", "suite": "sums", "family": "sums", "n": 4, "c": 3} for a, b in SUMS]
    (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = {"sums/problems": 4, "sums/pass@1": 0.75, "sums/pass@1_low": 0.5, "sums/pass@1_high": 1.0}
    settings = {"samples": 4, "split": "test"}
    model = {"model": ("tuned", "model")}
    write_result(outputs, "sums", "tuned.eval", "evaluate", model, metrics=metrics, config=settings)
    command = "python run.py pipeline=sums"
    (outputs / "runs/sums/summary.json").write_text(json.dumps({"command": command, "stages": []}))
    return outputs
