"""Run an sft stage in a process of its own, so that it can be killed: python -m tests.stages.sft.stage ROOT WORKDIR."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch

from pipeline.artifacts import Artifact
from pipeline.tracking import Context
from stages.parts.data.conversations import save_conversations
from stages.parts.policy.config import OptimizerConfig
from stages.parts.policy.model import save_policy
from stages.sft.config import SFTConfig
from stages.sft.run import run
from tests.stages.policy.tiny import tiny_policy

STEPS = 12


def make_inputs(root: Path) -> dict[str, Artifact]:
    """A tiny model, forty conversations and ten general ones."""
    if not (root / "policy").exists():
        policy = tiny_policy()
        save_policy(root / "policy", dict(policy.model.state_dict()), policy)
        for name, count in (("data", 40), ("general", 10)):
            save_conversations(root / name, [conversation(name, index) for index in range(count)])
    kinds = {"policy": "model", "data": "dataset:conversations", "general": "dataset:conversations"}
    return {port: Artifact(port, kind, root / port, {}, port, port) for port, kind in kinds.items()}


def conversation(name: str, index: int) -> dict:
    rng = random.Random(f"{name}/{index}")
    left, right = rng.randrange(100), rng.randrange(100)
    messages = [
        {"role": "user", "content": f"{left}+{right}"},
        {"role": "assistant", "content": f"<think>{'1' * rng.randrange(20)}</think>{left + right}"},
    ]
    return {"messages": messages, "problem_id": f"{name}-{index}", "suite": "reasoning"}


def config(**settings) -> SFTConfig:
    optimizer = OptimizerConfig(schedule="cosine", warmup_fraction=0.2)
    defaults = {"steps": STEPS, "learning_rate": 1e-2, "examples_per_step": 8, "max_tokens": 96, "save_every_steps": 3}
    return SFTConfig(seed=0, dtype="float32", optimizer=optimizer, **{**defaults, **settings})


def run_stage(root: Path, workdir: Path, cfg: SFTConfig | None = None, **place) -> dict:
    workdir.mkdir(parents=True, exist_ok=True)
    context = Context(stage="cold_start", workdir=workdir, seed=0, **place)
    return {"metrics": run(cfg or config(), make_inputs(root), context), "facts": context.facts}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = {}
    if len(sys.argv) > 3:
        import torch.distributed as dist

        place = {"rank": int(sys.argv[3]), "world_size": int(sys.argv[4])}
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/rendezvous-{sys.argv[5]}", **place)
    result = run_stage(
        Path(sys.argv[1]), Path(sys.argv[2]), config(**json.loads(sys.argv[6] if place else "{}")), **place
    )
    if place:
        dist.destroy_process_group()
    if not place or place["rank"] == 0:
        (Path(sys.argv[2]) / "result.json").write_text(json.dumps(result))
