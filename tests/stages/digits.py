"""A model that has learnt to answer with some digit, and problems whose answer is one: RL has something to teach.

`threes` are the easiest to learn: the answer is 3 whatever is asked, so a policy has to make one token likelier.
`threes_or_hopeless` have something for a critic: to half of the prompts nothing that is ever said is right.
"""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.artifacts import Artifact
from stages.parts.data.problems import save_problems
from stages.parts.data.template import render_conversation
from stages.parts.rollouts.types import Problem
from tests.stages.policy.tiny import tiny_policy


def threes(folder: Path) -> Artifact:
    return _problems(folder, [(f"{i % 10}+0=?", "3") for i in range(40)])


def threes_or_hopeless(folder: Path) -> Artifact:
    return _problems(folder, [("1+0=?", "3"), ("2+0=?", "1000")] * 20)


def _problems(folder: Path, asked: list[tuple[str, str]]) -> Artifact:
    problems = [
        Problem(f"p{i}", "reasoning", "digits", [{"role": "user", "content": question}], answer)
        for i, (question, answer) in enumerate(asked)
    ]
    save_problems(folder, {"train": problems[:32], "dev": problems[32:36], "test": problems[36:]})
    return Artifact("problems", "dataset:problems", folder, {}, "", "")


def digit_inputs(folder: Path) -> dict[str, Artifact]:
    policy = tiny_policy()
    problems = [
        Problem(f"p{i}", "reasoning", "digits", [{"role": "user", "content": f"{i % 10}+0=?"}], str(i % 10))
        for i in range(40)
    ]
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=3e-3)
    for step in range(150):
        texts = [
            [{**p.messages[0]}, {"role": "assistant", "content": str((7 * i + step) % 10)}]
            for i, p in enumerate(problems)
        ]
        ids = torch.tensor([render_conversation(policy.tokenizer, text)[0] for text in texts])
        policy.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.model.save_pretrained(folder / "model")
    policy.tokenizer.save_pretrained(folder / "model")
    save_problems(folder / "problems", {"train": problems[:32], "dev": problems[32:36], "test": problems[36:]})
    return {
        "policy": Artifact("policy", "model", folder / "model", {}, "", ""),
        "problems": Artifact("problems", "dataset:problems", folder / "problems", {}, "", ""),
    }
