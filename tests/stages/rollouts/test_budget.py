"""A thinking budget: the engine against a naive loop, under every cut of the batch; what it writes carries no loss."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pipeline.artifacts import StageFailed
from stages.parts.data.tokenizer import END_IDS, build_tokenizer, tokenizer_facts
from stages.parts.rollouts.budget import stop_of
from stages.parts.rollouts.config import STOP_TEXT, SamplingConfig, budget_faults, room_faults
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.sampling import noise_seeds, sample, uniform
from stages.parts.rollouts.types import Request, Rollout
from tests.stages.rollouts.tiny import END_IDS as ENDS
from tests.stages.rollouts.tiny import make_policy

KEY = (7, "reasoning_rl", 2)
CLOSE = 11
TEXT = {"<think>": [10], "</think>": [CLOSE], "stop</think>\n": [12, 13, CLOSE, 14]}
BUDGETED = SamplingConfig(max_response_tokens=24, thinking_budget=3, stop_text="stop</think>\n")


@pytest.fixture(scope="module")
def thinker(model, policy, requests_24):
    """A policy whose tokenizer calls a token that the model often samples `<think>`: blocks open at any time."""
    free = transformers_engine(policy).generate(requests_24, SamplingConfig(max_response_tokens=24), KEY)
    often = Counter(token for rollout in free for token in rollout.response_ids if token not in ENDS)
    opening = next(token for token, _ in often.most_common() if token not in (CLOSE, 12, 13, 14))
    words = TEXT | {"<think>": [opening]}
    thinking = make_policy(model)
    thinking.tokenizer = lambda text, add_special_tokens=False: {"input_ids": words[text]}
    return thinking, opening


@pytest.fixture(scope="module")
def prompts(thinker, requests_24):
    """Every second prompt ends inside a block, as some templates have it."""
    opening = thinker[1]
    return [
        Request(r.problem_id, r.sample_index, [*r.prompt_ids, opening] if place % 8 < 4 else r.prompt_ids)
        for place, r in enumerate(requests_24)
    ]


def naive(policy, opening: int, request: Request, sampling: SamplingConfig) -> tuple[list[int], list[int]]:
    """Ids and forced places, one row, one token at a time."""
    seed = torch.tensor(noise_seeds(KEY, [(request.problem_id, request.sample_index)]))
    ids, start, forced, waiting, used = list(request.prompt_ids), len(request.prompt_ids), [], [], 0
    inside = ids[-1] == opening
    while len(ids) - start < sampling.max_response_tokens:
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[:, -1]
        token = sample(logits, uniform(seed, torch.tensor([len(ids) - start])), sampling)[0].item()
        if inside and not waiting and used >= sampling.thinking_budget and token != CLOSE:
            waiting = list(TEXT[sampling.stop_text])
        if waiting:
            token = waiting.pop(0)
            forced.append(len(ids) - start)
        elif inside and token not in (CLOSE, opening):
            used += 1
        inside = (inside or token == opening) and token != CLOSE
        ids.append(token)
        if token in ENDS:
            break
    return ids[start:], forced


@pytest.mark.parametrize("budget", [0, 1, 3, 8])
@pytest.mark.parametrize(("max_rows", "refill_share"), [(512, 1.0), (5, 0.2)])
def test_equals_the_naive_loop(thinker, prompts, budget, max_rows, refill_share):
    policy, opening = thinker
    sampling = SamplingConfig(max_response_tokens=24, thinking_budget=budget, stop_text="stop</think>\n")
    engine = transformers_engine(policy, max_rows)
    engine.refill_share = refill_share
    for request, rollout in zip(prompts, engine.generate(prompts, sampling, KEY), strict=True):
        assert (rollout.response_ids, rollout.forced) == naive(policy, opening, request, sampling)


def test_some_rows_are_cut_and_some_are_not(thinker, prompts):
    rollouts = transformers_engine(thinker[0]).generate(prompts, BUDGETED, KEY)
    cut = [rollout for rollout in rollouts if rollout.forced]
    assert 4 < len(cut) < len(rollouts)
    for rollout in cut:
        written = [rollout.response_ids[place] for place in rollout.forced]
        assert written[:4] == TEXT["stop</think>\n"][: len(written)]
        assert all(rollout.sampler_logps[place] == 0.0 for place in rollout.forced)
        assert [place for place, flag in enumerate(rollout.mask) if flag == 0.0] == rollout.forced
    assert all(rollout.mask == [1.0] * len(rollout.response_ids) for rollout in rollouts if not rollout.forced)


def test_without_a_budget_nothing_changes(thinker, policy, prompts):
    sampling = SamplingConfig(max_response_tokens=24)
    plain = transformers_engine(policy).generate(prompts, sampling, KEY)  # this one has no tokenizer at all
    assert plain == transformers_engine(thinker[0]).generate(prompts, sampling, KEY)
    large = SamplingConfig(max_response_tokens=64, thinking_budget=58, stop_text="stop</think>\n")
    free = transformers_engine(policy).generate(prompts, SamplingConfig(max_response_tokens=64), KEY)
    budgeted = transformers_engine(thinker[0]).generate(prompts, large, KEY)
    assert [r for r in budgeted if not r.forced] == [f for f, r in zip(free, budgeted, strict=True) if not r.forced]
    assert sum(not rollout.forced for rollout in budgeted) > len(prompts) // 2


def test_streaming_gives_the_same_tokens(thinker, prompts):
    engine = transformers_engine(thinker[0])
    for request, rollout in zip(prompts[::3], engine.generate(prompts[::3], BUDGETED, KEY), strict=True):
        tokens = list(engine.stream(request, BUDGETED, KEY))
        assert [token for token, _ in tokens] == rollout.response_ids
        assert [place for place, (_, written) in enumerate(tokens) if written] == rollout.forced


def test_the_embedded_tokenizer_and_what_a_user_wrote():
    tokenizer = build_tokenizer()
    sampling = SamplingConfig(max_response_tokens=96, thinking_budget=16, stop_text=" out of time.")
    stop = stop_of(tokenizer, sampling, frozenset(END_IDS))
    assert tokenizer.decode(stop.text_ids) == " out of time.</think>"  # closed where the text does not
    asked = tokenizer("<|user|>what is <think> for?<|end|><|assistant|>", add_special_tokens=False)["input_ids"]
    assert not stop.opens(asked) and stop.opens([*asked, stop.open_id])


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (SamplingConfig(max_response_tokens=24, thinking_budget=8, stop_text="no more time now"), "leaves no room"),
        (SamplingConfig(max_response_tokens=96, thinking_budget=8, stop_text="<think>"), "close the think block once"),
        (SamplingConfig(max_response_tokens=96, thinking_budget=8, stop_text="a<|end|>"), "close the think block once"),
    ],
)
def test_what_cannot_be_forced_is_an_error(sampling, message):
    with pytest.raises(StageFailed, match=message):
        stop_of(build_tokenizer(), sampling, frozenset(END_IDS))


def test_tags_of_several_tokens_are_an_error():
    spelled = lambda text, add_special_tokens=False: {"input_ids": list(text.encode())}  # noqa: E731
    with pytest.raises(StageFailed, match="single tokens"):
        stop_of(spelled, BUDGETED, frozenset(ENDS))


@pytest.mark.parametrize("text", [" no time left, so", "", "é</think>\n", STOP_TEXT])
def test_the_plan_refuses_what_the_embedded_tokenizer_has_no_room_for(text):
    for budget in range(130):
        sampling = SamplingConfig(max_response_tokens=120, thinking_budget=budget, stop_text=text)
        faults = budget_faults("thinking_budget", budget, sampling, dict(tokenizer_facts()))
        try:
            stop_of(build_tokenizer(), sampling, frozenset(END_IDS))
        except StageFailed as failure:
            assert [str(failure)] == [f"{fault.key} {fault.problem}: {fault.remedy}" for fault in faults]
        else:
            assert faults == []


@pytest.mark.parametrize(
    ("budget", "remedy"),
    [(None, None), (0, None), (91, None), (92, "write less, 76, or max_response_tokens=112"), (-1, "write 0 (no")],
)
def test_of_another_tokenizer_the_least_is_known(budget, remedy):
    """Text, tag, text, and an answer behind them: a token each."""
    sampling = SamplingConfig(max_response_tokens=96, thinking_budget=budget, stop_text=STOP_TEXT)
    faults = budget_faults("budgets", budget, sampling, {"tokenizer": "Qwen/Qwen3"})
    assert [fault.key for fault in faults] == ["budgets"] * (remedy is not None)
    assert all(fault.remedy.startswith(str(remedy)) for fault in faults)


def test_a_remedy_leaves_room_for_an_answer():
    for stop in (1, 18, 90):
        (fault,) = room_faults("thinking_budget", 95, 96, stop)
        enough = int(fault.remedy.rpartition("=")[2])
        assert not room_faults("thinking_budget", 95, enough, stop)
        assert ("less" in fault.remedy) == (stop < 90)  # with 90 tokens there is no smaller budget


def test_a_rollout_as_json_keeps_what_was_forced():
    from dataclasses import asdict

    rollout = Rollout("p", 0, [1], [5, 6, 7], [0.1, 0.0, 0.2], False, forced=[1])
    assert Rollout(**asdict(rollout)).mask == [1.0, 0.0, 1.0]
