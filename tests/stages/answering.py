"""A small model that has learnt to answer four sums, saved as a model artifact with a problem set beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from pipeline.artifacts import Artifact
from stages.parts.data.problems import save_problems
from stages.parts.data.template import render_conversation
from stages.parts.data.tokenizer import END_IDS, PAD_ID, VOCAB_SIZE, build_tokenizer
from stages.parts.policy.model import Policy, save_policy
from stages.parts.rollouts.types import Problem

SUMS = [(1, 2), (4, 5), (3, 3), (2, 6)]


def make_problem(a: int, b: int, suite: str = "reasoning", answer: str | None = None) -> Problem:
    messages = [{"role": "user", "content": f"{a}+{b}?"}]
    return Problem(f"{suite}-{a}+{b}", suite, "sums", messages, answer or str(a + b), "math")


def answer_to(problem: Problem) -> dict[str, str]:
    a, b = problem.messages[0]["content"][:-1].split("+")
    total = int(a) + int(b)
    return {"role": "assistant", "content": f"<think>{a}+{b}={total}</think>\\boxed{{{total}}}"}


def trained_model() -> Policy:
    torch.manual_seed(0)
    tokenizer = build_tokenizer(96)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, intermediate_size=128, max_position_embeddings=96, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    rendered = [
        render_conversation(tokenizer, [*p.messages, answer_to(p)]) for p in (make_problem(a, b) for a, b in SUMS)
    ]
    ids = torch.tensor([ids for ids, _ in rendered])  # one-digit sums: all of one length
    labels = ids.masked_fill(~torch.tensor([mask for _, mask in rendered]), -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Policy(model.eval(), tokenizer, frozenset(END_IDS), PAD_ID, torch.device("cpu"))


def artifacts(folder: Path, policy: Policy, splits: dict[str, list[Problem]], port: str) -> dict[str, Artifact]:
    facts = save_policy(folder / "model", policy.model.state_dict(), policy)
    save_problems(folder / "problems", splits)
    return {
        port: Artifact(port, "model", folder / "model", facts, "f", "d"),
        "problems": Artifact("problems", "dataset:problems", folder / "problems", {}, "f", "d"),
    }
