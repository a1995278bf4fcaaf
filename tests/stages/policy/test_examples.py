"""Which examples a step sees, and what happens to conversations that are too long."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.artifacts import StageFailed
from stages.parts.data.tokenizer import END_IDS, build_tokenizer
from stages.parts.policy.examples import Example, Source, encode_source, examples_of_step, shares, split


def source(name: str, size: int) -> Source:
    return Source(name, [Example([index], [True]) for index in range(size)])


def ids_of(examples: list[Example]) -> list[int]:
    return [example.ids[0] for example in examples]


def test_every_example_once_an_epoch_on_any_number_of_ranks():
    data = source("data", 12)
    for ranks in (1, 2, 3):
        seen = Counter()
        for step in range(6):  # 6 steps of 4: two epochs
            chosen = examples_of_step([data], [4], 0, step)
            for rank in range(ranks):
                seen.update(ids_of(chosen[rank::ranks]))
        assert seen == dict.fromkeys(range(12), 2)


def test_an_epoch_is_shuffled_and_the_next_one_otherwise():
    data = source("data", 50)
    first, second = (ids_of(examples_of_step([data], [50], 0, step)) for step in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second and first != list(range(50))
    assert first == ids_of(examples_of_step([data], [50], 0, 0))
    assert first != ids_of(examples_of_step([data], [50], 1, 0))


def test_a_step_may_span_epochs_and_a_source_may_be_smaller_than_a_step():
    data = source("data", 3)
    assert Counter(ids_of(examples_of_step([data], [7], 0, 0))).most_common()[-1][1] == 2  # 7 of 3: each 2 or 3 times


def test_general_data_is_mixed_in():
    sources = [source("data", 10), source("general", 10)]
    per_step = shares(8, 0.25, sources)
    assert per_step == [6, 2]
    assert shares(8, 0.25, sources[:1]) == [8]  # nothing to mix in: the share does nothing
    assert len(examples_of_step(sources, per_step, 0, 3)) == 8


def conversation(length: int) -> dict:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * length}]}


def test_over_length_is_dropped_and_counted():
    data = encode_source("data", [conversation(5), conversation(50)], build_tokenizer(), 20, "drop")
    assert data.counts == {"conversations": 2, "dropped": 1, "split": 0}
    assert len(data.examples) == 1


def test_over_length_split_supervises_every_token_once_and_ends_once():
    tokenizer = build_tokenizer()
    whole = encode_source("data", [conversation(50)], tokenizer, 100, "split").examples[0]
    pieces = encode_source("data", [conversation(50)], tokenizer, 20, "split").examples
    assert len(pieces) > 2 and max(len(piece.ids) for piece in pieces) <= 20
    supervised = [token for piece in pieces for token, flag in zip(piece.ids, piece.mask, strict=True) if flag]
    assert supervised == [token for token, flag in zip(whole.ids, whole.mask, strict=True) if flag]
    assert [bool(set(piece.ids[1:]) & set(END_IDS)) for piece in pieces[1:]] == [False] * (len(pieces) - 2) + [True]
    assert all(not piece.mask[0] for piece in pieces)  # nothing predicts a first token


def test_split_drops_pieces_without_supervision():
    pieces = split(Example(list(range(10)), [False] * 8 + [True] * 2), 4)
    assert [piece.ids for piece in pieces] == [[6, 7, 8, 9]]


def test_over_length_error_names_the_knob():
    with pytest.raises(StageFailed, match="max_tokens=20"):
        encode_source("data", [conversation(50)], build_tokenizer(), 20, "error")


def test_nothing_supervised_is_a_failure():
    with pytest.raises(StageFailed, match="nothing would be learned"):
        encode_source("data", [conversation(50)], build_tokenizer(), 20, "drop")
    with pytest.raises(StageFailed, match="nothing would be learned"):
        encode_source("data", [], build_tokenizer(), 20, "drop")
