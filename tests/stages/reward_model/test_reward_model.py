"""The reward model on a small real model: it learns, resumes to the bit, leaves in transformers' own form, and its
update does not depend on how it is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from pipeline.artifacts import Interrupted, StageFailed
from stages.parts.data.pairs import HARMLESSNESS, Pair, save_pairs
from stages.parts.policy.batch import aligned_microbatches
from stages.parts.policy.config import LoRAConfig
from stages.parts.policy.reference import frozen
from stages.parts.policy.reward_model import encode_response, load_reward_model, reward_batch, rewards_of
from stages.reward_model.config import RewardModelConfig, outline
from stages.reward_model.pairs import Verdict, centres_of, encode_pairs, heldout_numbers, length_numbers
from stages.reward_model.run import run
from tests.stages.policy.tiny import context_in, tiny_policy
from tests.stages.reward_model.pairs import CONFIG, easy_pairs, pair_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return pair_inputs(tmp_path_factory.mktemp("inputs"), easy_pairs())


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    context = context_in(folder)
    return folder, context, run(CONFIG, inputs, context)


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def test_learns_to_tell_held_out_pairs_apart(trained):
    folder, context, metrics = trained
    assert metrics["pairs/accuracy"] > 0.9 and metrics["pairs/accuracy_low"] > 0.8
    assert metrics["pairs/accuracy_low"] <= metrics["pairs/accuracy"] <= metrics["pairs/accuracy_high"]
    assert {"pairs/harmlessness/accuracy", "pairs/harmlessness/complied/accuracy", "length/correlation",
            "length/longer_is_chosen", "data/epochs"} <= set(metrics)  # fmt: skip
    assert metrics["reward/harmlessness/chosen"] > 0 > metrics["reward/harmlessness/rejected"]  # around the centre
    lines = records(folder)
    assert lines[0]["train/nll"] == pytest.approx(0.693147, abs=1e-5)  # a fresh head gives 0: ln 2
    assert [line["step"] for line in lines if "dev/accuracy" in line] == [10, 20, 30, 40, 50]
    facts = context.facts["model"]
    assert facts["axes"] == ["harmlessness"] and set(facts["centres"]) == {"harmlessness"}
    rows = [json.loads(line) for line in (folder / "results" / "results.jsonl").read_text().splitlines()]
    assert len(rows) == metrics["pairs/number"] == context.facts["results"]["rows"]
    assert sum(row["right"] for row in rows) / len(rows) == pytest.approx(metrics["pairs/accuracy"])


def test_opens_with_transformers_and_gives_the_same_rewards(trained):
    """Padding included: transformers finds the last token by the padding id, we by position."""
    folder, context, _ = trained
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.num_labels == 1 and model.config.reward_centres == context.facts["model"]["centres"]
    pairs = easy_pairs()["test"][:6]
    sequences = [encode_response(tokenizer, p.messages, p.axis, text) for p in pairs for text in (p.chosen, p.rejected)]
    assert len({len(sequence) for sequence in sequences}) > 2
    loaded = load_reward_model(folder / "model", "float32")
    assert loaded.centres == context.facts["model"]["centres"]
    batch = reward_batch(sequences, loaded.policy)
    ours = rewards_of(frozen(loaded.policy, CONFIG).logps(batch).values_BT, batch)
    width = max(map(len, sequences))
    padded = torch.tensor([ids + [model.config.pad_token_id] * (width - len(ids)) for ids in sequences])
    with torch.no_grad():
        theirs = model(input_ids=padded).logits.squeeze(1)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert float(ours.std()) > 0.5


def test_resumes_to_the_bit(inputs, tmp_path):
    cfg = replace(CONFIG, steps=4, monitor_every_steps=2)
    run(cfg, inputs, context_in(tmp_path / "whole"))
    for _ in range(3):
        stopped = context_in(tmp_path / "stopped")
        stopped.stop.set()
        with pytest.raises(Interrupted):
            run(cfg, inputs, stopped)
    run(cfg, inputs, context_in(tmp_path / "stopped"))
    assert records(tmp_path / "stopped") == records(tmp_path / "whole")
    whole, again = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "stopped"))
    assert set(whole) == set(again) and "score.weight" in whole
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("tokens", [1, 1000])
def test_the_update_does_not_depend_on_the_microbatch(inputs, tmp_path, tokens):
    cfg = replace(CONFIG, steps=3)
    run(cfg, inputs, context_in(tmp_path / "whole"))
    run(replace(cfg, tokens_per_microbatch=tokens), inputs, context_in(tmp_path / "cut"))
    for one, other in zip(records(tmp_path / "whole"), records(tmp_path / "cut"), strict=True):
        for key in ("train/loss", "train/grad_norm", "train/accuracy"):
            if key in one:
                assert other[key] == pytest.approx(one[key], rel=1e-4), key


def test_what_is_judged_and_what_is_left_out():
    tokenizer = tiny_policy().tokenizer
    ask = [{"role": "user", "content": "x?"}]
    think = "<think>{}</think>answer"
    rows = [
        Pair("a", ask, think.format("one"), think.format("two")),  # helpfulness: the answers are the same
        Pair("b", ask, think.format("one"), think.format("two"), HARMLESSNESS),
        Pair("c", ask, "y" * 90, "z", HARMLESSNESS),
    ]
    encoded = encode_pairs(rows, tokenizer, max_tokens=60)
    assert [pair.pair.problem_id for pair in encoded.pairs] == ["b"]
    assert encoded.counts == {"pairs": 3, "dropped_same": 1, "dropped_long": 1}
    assert tokenizer.decode(encode_response(tokenizer, ask, "helpfulness", think.format("one"))) == (
        "<|user|>x?<|end|><|assistant|>answer<|end|>"
    )
    assert aligned_microbatches([pair.room for pair in encoded.pairs], 1) == [[0]]


def test_nothing_to_learn_from_fails(inputs, tmp_path):
    same = Pair("a", [{"role": "user", "content": "x?"}], "<think>1</think>a", "<think>2</think>a")
    save_pairs(tmp_path / "pairs", {"train": [same]})
    odd = {**inputs, "preferences": replace(inputs["preferences"], path=tmp_path / "pairs")}
    with pytest.raises(StageFailed, match="1 have the same text"):
        run(CONFIG, odd, context_in(tmp_path / "out"))


def verdict(prompt: str, chosen: float, rejected: float, tokens=(10, 10), reason: str = "", axis="helpfulness"):
    return Verdict(0, Pair(prompt, [], "a", "b", axis, reason), chosen, rejected, tokens)


def test_held_out_numbers_by_hand():
    """Prompt p: 1 of 2 right; q: right; r: a tie. (1 + 0 + 1 + 0.5) / 4 = 0.625. Rewards of the axis: mean of
    (2 + 1 + 0 + 1 + 3 + 1 + 2 + 2) / 8 = 1.5; chosen above it: (2 + 0 + 3 + 2) / 4 - 1.5 = 0.25."""
    rows = [
        verdict("p", 2, 1, reason="garbled"), verdict("p", 0, 1, reason="off_topic"), verdict("q", 3, 1, (12, 8)),
        verdict("r", 2, 2, (8, 12)),
    ]  # fmt: skip
    assert centres_of(rows) == {"helpfulness": 1.5}
    numbers = heldout_numbers(rows, centres_of(rows), seed=0)
    assert numbers["pairs/accuracy"] == numbers["pairs/helpfulness/accuracy"] == 0.625
    assert numbers["pairs/helpfulness/garbled/accuracy"] == 1.0
    assert numbers["pairs/helpfulness/off_topic/accuracy"] == 0.0
    assert numbers["reward/helpfulness/chosen"] == 0.25
    # the longer one is chosen once, is rejected once, and two pairs are of one length: (0.5 + 0.5 + 1 + 0) / 4
    assert numbers["length/longer_is_chosen"] == 0.5
    # rewards about lengths: tokens 12 (3), 8 (1), 8 (2), 12 (2), the rest 10: covariance (2*3 - 2*1 - 2*2 + 2*2) / 8
    assert numbers["length/correlation"] == pytest.approx((6 - 2 - 4 + 4) / 8 / (2**0.5 * (7 / 8 - 0.125) ** 0.5))


def test_length_alone_would_show():
    rows = [verdict(str(n), n, 0, (20 + n, 20)) for n in range(1, 5)]
    numbers = length_numbers(rows, centres_of(rows))
    assert numbers["length/longer_is_chosen"] == 1.0 and numbers["length/correlation"] == pytest.approx(1.0)


def test_faults_and_outline():
    faults = replace(CONFIG, lora=LoRAConfig(rank=4), pairs_per_step=0, centre_weight=-1.0, max_tokens=1).faults()
    assert {fault.key for fault in faults} == {"lora.rank", "pairs_per_step", "centre_weight", "max_tokens"}
    facts = {"policy": {"context_length": 128, "parameters": 7, "vocab_size": 5, "tokenizer_hash": "t"},
             "preferences": {"pairs": {"train": 0}, "axes": ["helpfulness"]}}  # fmt: skip
    told = outline(RewardModelConfig(seed=0, max_tokens=256), facts)
    assert {fault.key for fault in told.faults} == {"max_tokens", "inputs.preferences"}
    assert told.outputs["model"] == {"vocab_size": 5, "tokenizer_hash": "t", "context_length": 128,
                                     "axes": ["helpfulness"]}  # fmt: skip
