"""The engine against the naive loop, against transformers, and against itself under other batch cuts."""

from __future__ import annotations

import pytest
import torch

from pipeline.artifacts import StageFailed
from stages.parts.rollouts.config import SamplingConfig
from stages.parts.rollouts.engine import transformers_engine
from stages.parts.rollouts.sampling import noise_seeds, sample, uniform
from stages.parts.rollouts.types import Request
from tests.stages.rollouts.tiny import END_IDS, make_policy

KEY = (7, "reasoning_rl", 2)
SAMPLING = SamplingConfig(max_response_tokens=24)
TRUNCATING = SamplingConfig(temperature=0.7, top_p=0.9, top_k=40, max_response_tokens=24)


def naive(policy, request, sampling, key=KEY):
    """One row, the whole sequence at every token."""
    seed = torch.tensor(noise_seeds(key, [(request.problem_id, request.sample_index)]))
    ids, logps = list(request.prompt_ids), []
    for position in range(sampling.max_response_tokens):
        with torch.no_grad():
            logits = policy.model(torch.tensor([ids])).logits[:, -1]
        token, logp = sample(logits, uniform(seed, torch.tensor([position])), sampling)
        ids.append(token.item())
        logps.append(logp.item())
        if token.item() in policy.end_ids:
            break
    return ids[len(request.prompt_ids) :], logps


@pytest.mark.parametrize("sampling", [SAMPLING, TRUNCATING])
@pytest.mark.parametrize(("max_rows", "refill_share"), [(512, 1.0), (5, 0.2), (5, 1.0)])
def test_equals_the_naive_loop(policy, requests_24, sampling, max_rows, refill_share):
    engine = transformers_engine(policy, max_rows)
    engine.refill_share = refill_share
    rollouts = engine.generate(requests_24, sampling, KEY)
    lengths = set()
    for request, rollout in zip(requests_24, rollouts, strict=True):
        ids, logps = naive(policy, request, sampling)
        assert (rollout.problem_id, rollout.sample_index) == (request.problem_id, request.sample_index)
        assert rollout.response_ids == ids
        assert rollout.sampler_logps == pytest.approx(logps, abs=1e-4)
        lengths.add(len(ids))
    assert len(lengths) > 4  # rows did leave at different times: refill and compaction had work to do


def test_independent_of_batch_and_order(policy, requests_24):
    together = transformers_engine(policy).generate(requests_24, SAMPLING, KEY)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3)).tolist()
    refilling = transformers_engine(policy, max_rows=7)
    refilling.refill_share = 0.2
    shuffled = refilling.generate([requests_24[i] for i in order], SAMPLING, KEY)
    halves = [
        rollout
        for half in (requests_24[:10], requests_24[10:])
        for rollout in transformers_engine(policy, max_rows=3).generate(half, SAMPLING, KEY)
    ]
    for place, index in enumerate(order):
        assert shuffled[place].response_ids == together[index].response_ids
    assert [r.response_ids for r in halves] == [r.response_ids for r in together]


def test_same_call_is_bit_identical(policy, requests_24):
    first = transformers_engine(policy, 5).generate(requests_24, SAMPLING, KEY)
    second = transformers_engine(policy, 5).generate(requests_24, SAMPLING, KEY)
    assert first == second


def test_another_step_draws_anew(policy, requests_24):
    engine = transformers_engine(policy)
    one = engine.generate(requests_24, SAMPLING, KEY)
    two = engine.generate(requests_24, SAMPLING, (7, "reasoning_rl", 3))
    assert sum(a.response_ids == b.response_ids for a, b in zip(one, two, strict=True)) <= 2
    assert len({tuple(r.response_ids) for r in one[:4]}) > 1  # samples of one group differ


def test_logps_are_those_of_a_fresh_forward(policy, requests_24):
    sampling = SamplingConfig(temperature=0.8, max_response_tokens=24)
    for rollout in transformers_engine(policy, 6).generate(requests_24, sampling, KEY):
        ids = rollout.prompt_ids + rollout.response_ids
        with torch.no_grad():
            logps = torch.log_softmax(policy.model(torch.tensor([ids])).logits[0] / 0.8, dim=-1)
        start = len(rollout.prompt_ids)
        expected = [logps[start + t - 1, token].item() for t, token in enumerate(rollout.response_ids)]
        assert rollout.sampler_logps == pytest.approx(expected, abs=1e-4)


def test_end_tokens_are_a_set_and_stay_in_the_response(policy, requests_24):
    rollouts = transformers_engine(policy).generate(requests_24, SamplingConfig(max_response_tokens=60), KEY)
    ends = {r.response_ids[-1] for r in rollouts if not r.truncated}
    assert len(ends) > 1 and ends <= END_IDS
    for rollout in rollouts:
        assert not END_IDS & set(rollout.response_ids[:-1])
        assert rollout.truncated == (rollout.response_ids[-1] not in END_IDS)
        assert len(rollout.response_ids) == len(rollout.sampler_logps) <= 60


def test_truncated_at_the_limit_only(policy, requests_24):
    for rollout in transformers_engine(policy).generate(requests_24, SamplingConfig(max_response_tokens=4), KEY):
        if rollout.truncated:
            assert len(rollout.response_ids) == 4 and rollout.response_ids[-1] not in END_IDS
    # The limit reached by an end token is no truncation.
    free = transformers_engine(policy).generate(requests_24, SAMPLING, KEY)
    ended = next(i for i, r in enumerate(free) if not r.truncated and len(r.response_ids) > 1)
    tight = SamplingConfig(max_response_tokens=len(free[ended].response_ids))
    assert not transformers_engine(policy).generate([requests_24[ended]], tight, KEY)[0].truncated


def test_greedy_equals_generate(policy, requests_24):
    sampling = SamplingConfig(temperature=0.0, max_response_tokens=20)
    rollouts = transformers_engine(policy, 4).generate(requests_24, sampling, KEY)
    for request, rollout in zip(requests_24[::4], rollouts[::4], strict=True):
        ids = torch.tensor([request.prompt_ids])
        reference = policy.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20,
            eos_token_id=sorted(END_IDS), pad_token_id=0,
        )  # fmt: skip
        assert rollout.response_ids == reference[0, len(request.prompt_ids) :].tolist()


def test_weights_are_read_live_and_loaded(model, policy, requests_24):
    copy = type(model)(model.config)
    engine = transformers_engine(make_policy(copy))
    before = engine.generate(requests_24, SAMPLING, KEY)
    engine.load_weights(model.state_dict())
    after = engine.generate(requests_24, SAMPLING, KEY)
    assert before != after
    assert after == transformers_engine(policy).generate(requests_24, SAMPLING, KEY)
    with pytest.raises(StageFailed, match="lack"):
        engine.load_weights({})


def test_the_trainer_keeps_its_mode(model, policy, requests_24):
    model.train()
    transformers_engine(policy).generate(requests_24[:2], SAMPLING, KEY)
    assert model.training
    model.eval()


def test_too_long_for_the_context_is_refused(policy):
    with pytest.raises(StageFailed, match="lower max_response_tokens to 16"):
        transformers_engine(policy).generate([Request("p", 0, [7] * 80)], SAMPLING, KEY)
    with pytest.raises(StageFailed, match="no tokens"):
        transformers_engine(policy).generate([Request("p", 0, [])], SAMPLING, KEY)


def test_rows_are_limited_by_tokens(policy, requests_24, monkeypatch):
    engine = transformers_engine(policy, max_rows=512, max_tokens=130)
    rows = []
    opened = engine.decoder.open
    monkeypatch.setattr(engine.decoder, "open", lambda r, c: (rows.append((r, c)), opened(r, c)))
    limited = engine.generate(requests_24, SAMPLING, KEY)
    assert rows == [(3, 17 + 24), (1, 1)]  # 130 // 41; and nothing is kept when it is done
    assert [r.response_ids for r in limited] == [
        r.response_ids for r in transformers_engine(policy).generate(requests_24, SAMPLING, KEY)
    ]


def test_broken_weights_are_reported(model, requests_24):
    broken = type(model)(model.config)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    with pytest.raises(StageFailed, match="not finite"):
        transformers_engine(make_policy(broken)).generate(requests_24, SAMPLING, KEY)


def test_adapters_act(model, policy, requests_24):
    peft = pytest.importorskip("peft")
    base = type(model)(model.config)
    base.load_state_dict(model.state_dict())
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"]))
    engine = transformers_engine(make_policy(adapted))
    assert type(engine.decoder).__name__ == "DenseDecoder"
    plain = transformers_engine(policy).generate(requests_24, SAMPLING, KEY)
    assert engine.generate(requests_24, SAMPLING, KEY) == plain  # B starts at zero
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    rollout = engine.generate(requests_24[:1], SAMPLING, KEY)[0]
    assert rollout.response_ids == naive(make_policy(adapted), requests_24[0], SAMPLING)[0]
    assert rollout != plain[0]
