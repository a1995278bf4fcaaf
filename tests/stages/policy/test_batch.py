"""Rows, packing and micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.parts.policy.batch import microbatches, pack_batch, pack_rows, pad_batch
from tests.stages.policy.tiny import CPU, unpack

LENGTHS = st.lists(st.integers(1, 50), max_size=30)


def test_pad_batch():
    batch = pad_batch([[7, 8, 9], [5]], [[1.0, 0.0, 1.0], [1.0]], pad_id=0, device=CPU)
    assert batch.input_ids_BT.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert batch.segment_ids_BT.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.mask_BT.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]  # nothing predicts a first token
    assert not batch.packed


def test_packed_rows_shift_their_masks():
    """Response ranges that were not shifted trained on the instructions (OpenRLHF PR#781)."""
    batch = pack_batch([[1, 2, 3], [4, 5]], [[0.0, 1.0, 1.0], [0.0, 1.0]], 0, CPU, row_tokens=8)
    assert batch.input_ids_BT.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.segment_ids_BT.tolist() == [[1, 1, 1, 2, 2]]
    assert batch.mask_BT.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.0]]


def test_a_mask_of_another_length_is_an_error():
    with pytest.raises(ValueError, match="sequence 0 has 2 tokens and a mask of 3"):
        pad_batch([[1, 2]], [[0.0, 1.0, 1.0]], 0, CPU)


@given(LENGTHS, st.integers(1, 200))
def test_microbatches_hold_the_budget_and_everything_once(lengths, budget):
    batches = microbatches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


@given(LENGTHS, st.integers(1, 80))
def test_packing_holds_the_width_and_everything_once(lengths, width):
    rows = pack_rows(lengths, width)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= width


@given(LENGTHS)
def test_unpack_gives_back_the_sequences_in_order(lengths):
    sequences = [[index + 1] * length for index, length in enumerate(lengths)]
    masks = [[1.0] * length for length in lengths]
    batch = pack_batch(sequences, masks, 0, CPU, row_tokens=60)
    rows = unpack(batch.input_ids_BT, batch).tolist()
    assert [[token for token in row if token] for row in rows] == sequences
    assert torch.equal(batch.segment_ids_BT == 0, batch.input_ids_BT == 0)
