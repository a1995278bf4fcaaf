"""A reward model as a judge: what it reads of a response, its scale, and that how it is cut does not matter."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pipeline.artifacts import StageFailed
from stages.parts.policy.config import TrainedStageConfig
from stages.parts.policy.judge import chance, learned_parts, load_judge
from stages.parts.policy.model import save_policy
from stages.parts.policy.reward_model import load_reward_model, new_reward_model, save_reward_model
from stages.parts.rollouts.types import Problem
from tests.stages.policy.tiny import tiny_policy

CONFIG = TrainedStageConfig(kind="x", seed=0, dtype="float32", tokens_per_microbatch=4096)
CENTRES = {"helpfulness": 0.5, "harmlessness": -0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reward model with any preferences."""
    root = tmp_path_factory.mktemp("judge")
    policy = tiny_policy()
    save_policy(root / "lm", dict(policy.model.state_dict()), policy)
    body = new_reward_model(root / "lm")
    with torch.no_grad():
        body.model.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    facts = save_reward_model(root / "rm", dict(body.model.state_dict()), body, CENTRES)
    assert facts["parameters"] == sum(param.numel() for param in body.model.parameters())
    return root / "rm"


def problem(*parts: str, number: int = 0) -> Problem:
    messages = [{"role": "user", "content": f"{number}?"}]
    return Problem(f"p{number}", "helpful", "x", messages, "", metadata={"scored_by": list(parts)} if parts else {})


def test_helpfulness_reads_the_answer_and_harmlessness_all_of_it(folder):
    judge = load_judge(folder, CONFIG)
    both = problem("helpfulness", "harmlessness", "format")
    texts = ["<think>one</think>answer", "<think>two</think>answer", "<think>one</think>other"]
    first, thought, answered = learned_parts(judge, [both] * 3, texts)
    assert first["helpfulness"] == pytest.approx(thought["helpfulness"], abs=1e-9)
    assert first["helpfulness"] != pytest.approx(answered["helpfulness"], abs=1e-4)
    assert first["harmlessness"] != pytest.approx(thought["harmlessness"], abs=1e-4)
    assert set(first) == {"helpfulness", "harmlessness"}


def test_only_problems_that_ask_are_judged(folder):
    judge = load_judge(folder, CONFIG)
    asked = [problem(), problem("accuracy", "format"), problem("accuracy", "harmlessness")]
    parts = learned_parts(judge, asked, ["a", "b", "c"])
    assert [set(row) for row in parts] == [set(), set(), {"harmlessness"}]
    assert learned_parts(judge, [], []) == []
    assert learned_parts(judge, [problem()], ["a"]) == [{}]


def test_a_score_is_a_chance_around_the_centre_of_its_axis(folder):
    """transformers' own forward gives the reward."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_reward_model(folder, "float32").policy.tokenizer
    ids = tokenizer("<|user|>0?<|end|><|assistant|>so<|end|>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        reward = float(model(input_ids=ids).logits)
    [row] = learned_parts(load_judge(folder, CONFIG), [problem("helpfulness")], ["<think>x</think>so"])
    assert row["helpfulness"] == pytest.approx(1 / (1 + math.exp(0.5 - reward)), abs=1e-6)
    assert chance(0.0) == 0.5 and chance(1e6) == 1.0 and chance(-1e6) == pytest.approx(0.0)
    assert chance(1.5) == pytest.approx(0.8175744762)  # 1 / (1 + e^-1.5) = 1 / 1.2231301601


def test_micro_batches_change_nothing(folder):
    problems = [problem("helpfulness", number=n) for n in range(9)]
    texts = ["x" * (3 * n % 7 + 1) for n in range(9)]
    whole = learned_parts(load_judge(folder, CONFIG), problems, texts)
    for size in (1, 60):
        cut = learned_parts(load_judge(folder, replace(CONFIG, tokens_per_microbatch=size)), problems, texts)
        assert [row["helpfulness"] for row in cut] == pytest.approx([row["helpfulness"] for row in whole], abs=1e-6)


def test_a_language_model_is_no_reward_model(folder):
    with pytest.raises(StageFailed, match=r"score\.weight"):
        load_reward_model(folder.parent / "lm")
