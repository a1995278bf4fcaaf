"""Demonstrations that a model makes itself: right, readable ones only, and never the same sampling twice."""

from __future__ import annotations

import pytest

from pipeline.artifacts import Artifact, StageFailed
from pipeline.tracking import Context
from stages.parts.data.conversations import load_conversations
from stages.parts.data.problems import save_problems
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.types import Problem, Rollout, Score
from stages.sft import few_shot
from stages.sft.few_shot import examples, few_shot_conversations, is_demonstration
from tests.stages.policy.tiny import tiny_policy
from tests.stages.sft.stage import config

PROBLEMS = [
    Problem(f"p{index}", "reasoning", "sum", [{"role": "user", "content": f"{index}+1?"}], str(index + 1), "exact")
    for index in range(6)
]


class Parrot:
    """A rollout engine that is right on even problems, once in two samples, and rambles before it."""

    def __init__(self, policy):
        self.policy, self.calls = policy, 0

    def generate(self, requests, sampling, noise_key):
        self.calls += 1
        return [self.answer(request) for request in requests]

    def answer(self, request):
        number = int(request.problem_id[1:])
        right = number % 2 == 0 and request.sample_index > 0
        text = f"<think>{'so ' * request.sample_index}it is</think>\\boxed{{{number + 1 if right else 99}}}"
        ids = [*self.policy.tokenizer(text)["input_ids"], min(self.policy.end_ids)]
        return Rollout(request.problem_id, request.sample_index, request.prompt_ids, ids, [0.0] * len(ids), False)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    save_problems(tmp_path / "problems", {"train": PROBLEMS})
    policy = tiny_policy(max_position_embeddings=1024)
    parrot = Parrot(policy)
    monkeypatch.setattr(few_shot, "transformers_engine", lambda policy: parrot)
    inputs = {"problems": Artifact("problems", "dataset:problems", tmp_path / "problems", {}, "", "")}
    context = Context(stage="cold_start", workdir=tmp_path, seed=0)
    return policy, parrot, inputs, context


CFG = config(source="few_shot", few_shot_samples=4, few_shot_sampling=SamplingConfig(max_response_tokens=64))


def test_right_and_shortest_are_kept_without_the_examples(stage):
    policy, _parrot, inputs, context = stage
    rows, metrics = few_shot_conversations(CFG, policy, inputs, context)
    assert sorted(row["problem_id"] for row in rows) == ["p0", "p2", "p4"]
    assert metrics == {"few_shot/sampled": 24.0, "few_shot/kept": 3.0}
    for row in rows:
        assert len(row["messages"]) == 2  # the examples are not learned
        assert row["messages"][1]["content"].startswith("<think>so it is")  # sample 1: the shortest right one


def test_a_resumed_stage_reads_what_was_sampled(stage):
    policy, parrot, inputs, context = stage
    first = few_shot_conversations(CFG, policy, inputs, context)
    assert few_shot_conversations(CFG, policy, inputs, context) == first and parrot.calls == 1


def test_none_kept_is_a_failure_with_the_remedy(stage):
    policy, _parrot, inputs, context = stage
    few_samples = config(source="few_shot", few_shot_samples=1)  # sample 0 is always wrong
    with pytest.raises(StageFailed, match=r"none of 6 few-shot responses .*source=data"):
        few_shot_conversations(few_samples, policy, inputs, context)


def test_examples_come_from_data_where_it_is_wired(tmp_path, stage):
    from tests.stages.sft.stage import make_inputs

    inputs = make_inputs(tmp_path)
    turns = examples(CFG, inputs)
    known = [message for row in load_conversations(tmp_path / "data") for message in row["messages"]]
    assert len(turns) == 8 and all(turn in known for turn in turns)
    assert len(examples(CFG, {})) == 8 and "boxed" in examples(CFG, {})[1]["content"]


@pytest.mark.parametrize(
    "changes", [{"truncated": True}, {"accuracy": 0.0}, {"format": 0.0}, {"language": 0.5}, {"value": None}]
)
def test_what_is_no_demonstration(changes):
    parts = {"accuracy": 1.0, "format": 1.0, "language": 1.0}
    score = Score(changes.get("value", 1.0), parts | {key: changes[key] for key in parts if key in changes})
    rollout = Rollout("p", 0, [], [], [], changes.get("truncated", False), score=score)
    assert not is_demonstration(rollout)
    assert is_demonstration(Rollout("p", 0, [], [], [], False, score=Score(1.0, parts)))
