"""Writes the files of a run as design and store have them, with numbers that tell a plausible story."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

HOSTILE = (
    '</pre><script>alert(1)</script><img src="https://example.com/x.png" onerror=alert(2)>'
    " \x00\x1b[31m \u202eabc \ud800 &amp;"
)

# name, kind, inputs, accuracy (reasoning, general), seconds, steps
CHAIN = [
    ("problems", "problems", {}, None, 4.1, None),
    ("base", "base_model", {"problems": "problems.problems"}, (0.22, 0.15), 212.0, 900),
    ("cold_start", "sft", {"policy": "base.model", "data": "problems.demonstrations"}, (0.38, 0.14), 31.0, 60),
    ("reasoning_rl", "rl", {"policy": "cold_start.model", "problems": "problems.problems"}, (0.57, 0.12), 240.0, 80),
    (
        "rejection_sampling",
        "sample",
        {"policy": "reasoning_rl.model", "problems": "problems.problems"},
        None,
        22.0,
        None,
    ),
    (
        "rejection_sft",
        "sft",
        {"policy": "base.model", "data": "rejection_sampling.kept", "general": "problems.general"},
        (0.49, 0.41),
        40.0,
        80,
    ),
    ("general_rl", "rl", {"policy": "rejection_sft.model", "problems": "problems.problems"}, (0.5, 0.52), 130.0, 40),
    ("student_base", "base_model", {"problems": "problems.problems"}, (0.15, 0.1), 90.0, 500),
    (
        "distillation",
        "distill",
        {"student": "student_base.model", "data": "rejection_sampling.kept"},
        (0.34, 0.09),
        25.0,
        80,
    ),
    (
        "distillation_control",
        "distill",
        {"student": "student_base.model", "data": "problems.demonstrations"},
        (0.24, 0.1),
        25.0,
        80,
    ),
]


def write_example_run(root: Path, problems: int = 200, fail_at: str | None = None) -> Path:
    """A run folder under `root`; `fail_at` names a stage that failed, with nothing after it."""
    random.seed(0)
    run_dir = root / "runs" / "r1_style"
    (run_dir / "stages").mkdir(parents=True)
    planned, told, failed = [], [], False
    for number, (name, kind, inputs, accuracy, seconds, steps) in enumerate(CHAIN):
        nodes = [(name, kind, inputs, seconds, steps)]
        if accuracy:
            nodes.append(
                (f"{name}.eval", "evaluate", {"model": f"{name}.model", "problems": "problems.problems"}, 9.0, None)
            )
        for node, node_kind, node_inputs, node_seconds, node_steps in nodes:
            planned.append(
                {
                    "name": node,
                    "kind": node_kind,
                    "fingerprint": f"{number:02d}ab34cd56ef",
                    "inputs": node_inputs,
                    "steps": node_steps,
                    "evaluates": name if node.endswith(".eval") else None,
                }
            )
            status = "cached" if number < 2 else "ran"
            if failed or node == fail_at:
                status = "skipped" if failed else "failed"
                failed = True
                told.append({"name": node, "kind": node_kind, "status": status, "seconds": 0.0, "metrics": {}})
                if status == "failed":
                    told[-1]["error"] = "non-finite loss at step 12 <b>of 80</b>"
                continue
            metrics = write_entry(root, run_dir, node, node_kind, node_seconds, node_steps, accuracy, problems)
            shown = 0.0 if status == "cached" else node_seconds
            told.append({"name": node, "kind": node_kind, "status": status, "seconds": shown, "metrics": metrics})
    (run_dir / "plan.json").write_text(
        json.dumps(
            {
                "name": "r1_style",
                "pipeline": "r1_style",
                "stages": planned,
                "warnings": ["epsilon does nothing in general_rl: one update a rollout"],
            }
        )
    )
    summary = {
        "name": "r1_style",
        "pipeline": "r1_style",
        "status": "failed" if failed else "done",
        "seconds": 640.2,
        "overhead_seconds": 3.4,
        "command": "python run.py pipeline=r1_style seed=1",
        "stages": told,
    }
    if failed:
        summary["error"] = {"stage": fail_at, "message": "non-finite loss at step 12 <b>of 80</b>"}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return run_dir


def write_entry(
    root: Path, run_dir: Path, name: str, kind: str, seconds: float, steps, accuracy, problems: int
) -> dict:
    entry = root / "store" / f"{kind}-{name}"
    entry.mkdir(parents=True)
    metrics: dict[str, float | None] = {"train/steps": steps} if steps else {}
    if kind == "rl":
        write_rl(entry, steps)
    elif steps:
        rows = [
            {
                "step": s,
                "train/loss": 0.3 + 2.2 * math.exp(-s / (steps / 5)) + random.gauss(0, 0.03),
                "train/grad_norm": random.random(),
                "time/step_seconds": 0.2,
            }
            for s in range(1, steps + 1)
        ]
        write_rows(entry / "metrics.jsonl", rows)
    if kind == "sample":
        metrics = {
            "ledger/sampled": 4096,
            "ledger/kept": 1380,
            "ledger/wrong": 1822,
            "ledger/truncated": 240,
            "ledger/language": 31,
            "ledger/repetition": 64,
            "ledger/duplicate": 559,
            "ledger/problems": 1024,
            "ledger/problems_kept": 702,
            "ledger/kept_share": 0.337,
        }
    if kind == "evaluate":
        metrics = write_evaluation(entry, name, accuracy, problems)
    outputs = {"model": {"kind": "model", "path": "model", "digest": "d1", "parameters": 612352}} if steps else {}
    (entry / "artifact.json").write_text(
        json.dumps(
            {
                "kind": kind,
                "fingerprint": f"{abs(hash(name)):016x}"[:16],
                "recipe_version": 1,
                "source_digest": "aa11",
                "stage": name,
                "inputs": {},
                "outputs": outputs,
                "metrics": metrics,
                "seconds": seconds,
                "seed": 0,
                "ranks": 1,
                "threads": 1,
                "git": {"commit": "0123456789abcdef", "dirty": True},
                "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
                "hardware": {"cpu": "Some CPU @ 2.10GHz", "cores": 2, "memory_gib": 23.4, "gpus": 0},
                "created": "2026-11-29T14:00:00.123456+00:00",
            }
        )
    )
    (run_dir / "stages" / name).symlink_to(entry, target_is_directory=True)
    return metrics


def write_rl(entry: Path, steps: int) -> None:
    rows, shown = [], []
    for step in range(steps):
        rise = step / steps
        row = {
            "step": step,
            "reward/mean": 0.38 + 0.2 * rise + random.gauss(0, 0.03),
            "rollout/accuracy": 0.36 + 0.2 * rise + random.gauss(0, 0.03),
            "length/mean": 22 + 10 * rise + random.gauss(0, 1),
            "length/right": 21 + 11 * rise + random.gauss(0, 1),
            "length/wrong": 24 + 8 * rise + random.gauss(0, 1),
            "rollout/tokens": 4000 + 100 * step,
            "groups/constant_tokens": 0.25,
            "train/entropy": 0.5 - 0.1 * rise,
            "train/kl": 0.02 * rise + abs(random.gauss(0, 0.001)),
            "groups/all_right": 0.1 + 0.2 * rise,
            "groups/all_wrong": 0.3 - 0.2 * rise,
            "behaviour/reasoned": 0.38 + 0.4 * rise,
            "behaviour/reflection": 0.05 + 0.03 * rise,
            "behaviour/format": 0.9 + 0.1 * rise,
            "train/grad_norm": random.random(),
            "time/step_seconds": 3.0,
        }
        if step % 20 == 0 or step == steps - 1:
            row["heldout/reasoning/pass@1"] = 0.38 + 0.18 * rise
            row["heldout/reasoning/length"] = None
            shown += [
                {
                    "step": step,
                    "problem_id": f"p{i}",
                    "suite": "reasoning",
                    "prompt": "What is 3 + 4 - 2?",
                    "answer": "5",
                    "response": HOSTILE if i == 1 else "<think>3+4=7. 7-2=5.</think>The answer is \\boxed{5}",
                    "reward": 1.1,
                    "parts": {"accuracy": 1.0, "format": 1.0},
                    "tokens": 31,
                    "truncated": i == 1,
                }
                for i in range(4)
            ]
        rows.append(row)
    write_rows(entry / "metrics.jsonl", rows)
    write_rows(entry / "samples.jsonl", shown)


def write_evaluation(entry: Path, name: str, accuracy: tuple[float, float], problems: int) -> dict[str, float]:
    results, responses, metrics = [], [], {}
    families = {
        "reasoning": ["chain_sum", "basic_arithmetic", "gcd", "products"],
        "general": ["spell_backward", "letter_counting"],
    }
    for suite, mean in zip(families, accuracy):
        metrics |= {
            f"{suite}/pass@1": mean,
            f"{suite}/pass@8": mean + 0.2,
            f"{suite}/truncated": 0.02,
            f"{suite}/length": 27.3,
            f"{suite}/format": 0.94,
            f"{suite}/reflection": 0.06,
            f"{suite}/reasoned": 0.71,
        }
        for index in range(problems):
            difficulty = random.Random(f"{suite}{index}").gauss(0, 0.25)
            chance = min(1.0, max(0.0, mean + difficulty))
            c = sum(random.random() < chance for _ in range(8))
            key = f"{suite}-{index:04d}"
            results.append(
                {
                    "problem_id": key,
                    "suite": suite,
                    "family": families[suite][index % len(families[suite])],
                    "n": 8,
                    "c": c,
                }
            )
            responses.append(
                {
                    "problem_id": key,
                    "suite": suite,
                    "sample_index": 0,
                    "prompt": f"Problem {index}: what is 12 + {index}?",
                    "text": f"{name}: <think>12+{index}</think>\\boxed{{{12 + index}}}",
                    "right": c > 4,
                    "truncated": False,
                }
            )
    (entry / "results").mkdir()
    (entry / "responses").mkdir()
    write_rows(entry / "results" / "results.jsonl", results)
    write_rows(entry / "responses" / "train.jsonl", responses)
    return metrics


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
