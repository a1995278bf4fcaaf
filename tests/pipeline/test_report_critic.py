"""The report's comparison of PPO with GRPO: the measured figures, whatever the articles say."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.report.critic import critic
from pipeline.report.load import load_run


def write_run(folder: Path, ppo_reads: str) -> Path:
    """Two RL stages; 2 of 4 problems right with GRPO and 3 of 4 with PPO, which needs half as much memory again."""
    figures = {"grpo": ("rl", "cold_start", 10.0, 200e6, 2), "ppo": ("ppo", ppo_reads, 15.0, 300e6, 3)}
    stages = []
    for name, (kind, reads, seconds, peak, right) in figures.items():
        inputs = {"policy": f"{reads}.model"}
        metrics = {"memory/peak_bytes": peak, "memory/state_bytes": peak / 10}
        stages += [
            {"name": name, "kind": kind, "inputs": inputs},
            {"name": f"{name}.eval", "kind": "evaluate", "inputs": {"model": f"{name}.model"}},
        ]
        entry = folder / "stages" / name
        entry.mkdir(parents=True)
        (entry / "artifact.json").write_text(json.dumps({"seconds": seconds, "metrics": metrics}))
        (entry / "metrics.jsonl").write_text(json.dumps({"step": 1, "rollout/tokens": 500}) + "\n")
        results = folder / "stages" / f"{name}.eval" / "results"
        results.mkdir(parents=True)
        rows = [{"suite": "reasoning", "problem_id": str(i), "n": 1, "c": int(i < right)} for i in range(4)]
        (results / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for base in ("cold_start", "other"):
        (folder / "stages" / base).mkdir()
        (folder / "stages" / base / "artifact.json").write_text(json.dumps({"outputs": {"model": {"kind": "model"}}}))
        stages.insert(0, {"name": base, "kind": "sft", "inputs": {}})
    (folder / "plan.json").write_text(json.dumps({"stages": stages}))
    return folder


def test_the_measured_ratio_is_told(tmp_path):
    told = critic(load_run(write_run(tmp_path, "cold_start")))
    assert "<b>1.50×</b> the peak memory as measured" in told
    assert "<b>1.50×</b> the time" in told
    assert "200.0 MB" in told
    assert "300.0 MB" in told
    assert "reasoning <b>+25.0</b> points" in told


def test_stages_that_start_from_other_models_are_not_compared(tmp_path):
    assert critic(load_run(write_run(tmp_path, "other"))) == ""
