"""Requests, texts and groups through the embedded tokenizer."""

from __future__ import annotations

from types import SimpleNamespace

from stages.parts.data.tokenizer import build_tokenizer
from stages.parts.rollouts import requests as requests_module
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.requests import answer_problems, attach_texts, group_rollouts, make_requests
from stages.parts.rollouts.selection import choose
from stages.parts.rollouts.types import Problem, Rollout
from stages.parts.verifiers.config import RewardConfig


def problem(name: str, question: str = "1+2?") -> Problem:
    return Problem(name, "reasoning", "sums", [{"role": "user", "content": question}], "3", "exact")


def test_equal_prompts_stay_two_groups():
    tokenizer = build_tokenizer()
    problems = [problem("a"), problem("b")]
    requests = make_requests(tokenizer, problems, 3)
    assert [(r.problem_id, r.sample_index) for r in requests] == [(p, i) for p in "ab" for i in range(3)]
    assert tokenizer.decode(requests[0].prompt_ids) == "<|user|>1+2?<|end|><|assistant|>"
    rollouts = [Rollout(r.problem_id, r.sample_index, r.prompt_ids, [1], [0.0], True) for r in requests]
    groups = group_rollouts(problems, rollouts, 3)
    assert [[(r.problem_id, r.sample_index) for r in g.rollouts] for g in groups] == [
        [("a", 0), ("a", 1), ("a", 2)],
        [("b", 0), ("b", 1), ("b", 2)],
    ]


def test_text_is_without_the_end_token_and_with_think_tags():
    tokenizer = build_tokenizer()
    ids = tokenizer("<think>1+2=3</think>\\boxed{3}<|end|>", add_special_tokens=False)["input_ids"]
    ended = Rollout("a", 0, [1], ids, [0.0] * len(ids), truncated=False)
    cut = Rollout("a", 1, [1], ids[:-2], [0.0] * (len(ids) - 2), truncated=True)
    attach_texts(SimpleNamespace(tokenizer=tokenizer), [ended, cut])
    assert ended.text == "<think>1+2=3</think>\\boxed{3}"
    assert cut.text == "<think>1+2=3</think>\\boxed{3"


class Silent:
    """An engine whose every response is cut off at once."""

    def generate(self, requests, sampling, noise_key):
        return [Rollout(r.problem_id, r.sample_index, r.prompt_ids, [65], [0.0], True) for r in requests]


def test_ranks_stay_in_step_and_answer_everything_once(monkeypatch):
    monkeypatch.setattr(requests_module, "RESPONSES_PER_CALL", 4)
    policy = SimpleNamespace(tokenizer=build_tokenizer())
    for count, ranks in ((5, 2), (1, 3), (8, 2), (9, 4)):
        problems = [problem(f"p{i}") for i in range(count)]
        steps: list[list[int]] = []
        answered: list[str] = []
        for rank in range(ranks):
            seen: list[int] = []
            groups = answer_problems(
                Silent(), policy, problems, 2, SamplingConfig(), (0, "s", 0), RewardConfig(), (rank, ranks), seen.append
            )
            steps.append(seen)
            answered += [group.problem.id for group in groups]
        assert all(seen == steps[0] and seen[-1] == count for seen in steps)
        assert sorted(answered) == sorted(p.id for p in problems)


def test_choice_is_seeded_ordered_and_not_the_first_ones():
    problems = [problem(f"p{i}") for i in range(100)]
    chosen = choose(problems, 10, 0)
    names = [int(p.id[1:]) for p in chosen]
    assert len(set(names)) == 10 and names == sorted(names) and names != list(range(10))
    assert chosen == choose(problems, 10, 0) != choose(problems, 10, 1)
    assert choose(problems, 100, 0) == problems
