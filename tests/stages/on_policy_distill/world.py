"""A student that answers with some digit, a teacher of the same tokenizer that always answers 3, and such problems."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from pipeline.artifacts import Artifact
from stages.on_policy_distill.config import OnPolicyDistillConfig
from stages.parts.data.conversations import save_conversations
from stages.parts.data.template import render_conversation
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.policy.model import save_policy
from stages.parts.verifiers.config import RewardConfig
from tests.stages.digits import digit_inputs, threes
from tests.stages.policy.tiny import tiny_policy

ALGORITHM = AlgorithmConfig(name="grpo", beta=0.0, epsilon=0.2)
CONFIG = OnPolicyDistillConfig(
    seed=0,
    steps=4,
    prompts_per_step=8,
    updates_per_rollout=2,
    max_response_tokens=6,
    max_tokens=96,
    learning_rate=1e-3,
    tokens_per_microbatch=200,
    algorithm=ALGORITHM,
    reward=RewardConfig(accuracy=1.0, require_box=False),
    monitor_every_steps=100,
    monitor_problems=4,
)


def conversation(index: int) -> dict:
    messages = [{"role": "user", "content": f"{index % 10}+0=?"}, {"role": "assistant", "content": "3"}]
    return {"messages": messages, "problem_id": f"p{index}", "suite": "reasoning"}


def distill_inputs(folder: Path) -> dict[str, Artifact]:
    inputs = digit_inputs(folder)
    save_policy(folder / "teacher", *_teacher())
    save_conversations(folder / "data", [conversation(index) for index in range(20)])
    return {
        "student": replace(inputs["policy"], port="student"),
        "teacher": Artifact("teacher", "model", folder / "teacher", {}, "", ""),
        "problems": threes(folder / "threes"),
        "data": Artifact("data", "dataset:conversations", folder / "data", {}, "", ""),
    }


def _teacher():
    policy = tiny_policy(5, hidden_size=48)
    texts = [render_conversation(policy.tokenizer, conversation(index)["messages"])[0] for index in range(10)]
    ids = torch.tensor(texts)
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=3e-3)
    for _ in range(60):
        policy.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(policy.model.state_dict()), policy


def records(folder: Path) -> list[dict]:
    """Metric lines without clock values."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]
