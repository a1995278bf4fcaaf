"""Log-probs of given tokens against the plain way to get them: all logits, float64 softmax."""

from __future__ import annotations

import pytest
import torch

from stages.parts.policy.batch import pack_batch, pad_batch
from stages.parts.policy.scoring import Scorer, logps_of_logits
from tests.stages.policy.tiny import CPU, ragged, tiny_policy, unpack

SEQUENCES, MASKS = ragged(7)


def plain_logps(model, sequence, temperature=1.0):
    """log p(token t | tokens before it) of one sequence alone, 0 for the first."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sequence])).logits[0, :-1].double() / temperature
    rows = torch.log_softmax(logits, -1)
    return [0.0] + [float(rows[t, token]) for t, token in enumerate(sequence[1:])]


@pytest.fixture(scope="module")
def policy():
    policy = tiny_policy()
    policy.model.get_input_embeddings().weight.data.mul_(20)  # logits of some spread: an untrained model is flat
    return policy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logps_are_token_aligned(policy, temperature):
    batch = pad_batch(SEQUENCES, MASKS, 0, CPU)
    logps_BT = Scorer(policy.model)(batch, temperature, False)[0]
    for row, (sequence, mask) in enumerate(zip(SEQUENCES, MASKS, strict=True)):
        expected = torch.tensor(plain_logps(policy.model, sequence, temperature)) * torch.tensor(mask)
        assert torch.allclose(logps_BT[row, : len(sequence)], expected, atol=1e-5)
        assert not logps_BT[row, len(sequence) :].any()


def test_packed_rows_give_the_same_logps(policy):
    packed = pack_batch(SEQUENCES, MASKS, 0, CPU, row_tokens=64)
    assert packed.packed and packed.input_ids_BT.shape[0] < len(SEQUENCES)
    padded = pad_batch(SEQUENCES, MASKS, 0, CPU)
    scorer = Scorer(policy.model)
    got = unpack(scorer(packed, 1.0, False)[0], packed)
    wanted = unpack(scorer(padded, 1.0, False)[0], padded)
    assert torch.allclose(got, wanted, atol=1e-5)


def test_padding_is_known_by_position(policy):
    scorer = Scorer(policy.model)
    one = scorer(pad_batch(SEQUENCES, MASKS, 0, CPU), 1.0, False)[0]
    other = scorer(pad_batch(SEQUENCES, MASKS, SEQUENCES[0][-1], CPU), 1.0, False)[0]
    assert torch.equal(one, other)


def test_entropy_is_that_of_the_distribution(policy):
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0], [100.0, 0.0, 0.0, 0.0]])
    logps, entropy = logps_of_logits(logits, torch.tensor([2, 0]), 1.0, entropy=True)
    assert entropy.tolist() == pytest.approx([1.3862943611, 0.0], abs=1e-6)  # ln 4; certainty
    assert logps.tolist() == pytest.approx([-1.3862943611, 0.0], abs=1e-6)


def test_chunks_of_a_large_vocabulary_change_nothing(policy):
    batch = pad_batch(SEQUENCES, MASKS, 0, CPU)
    scorer, results = Scorer(policy.model), []
    for at_once in (2**25, 264 * 3):  # everything; three positions at a time
        policy.model.zero_grad()
        logps, entropy = scorer(batch, 0.9, True, at_once, reads=("logps", "entropy"))[:2]
        (logps.sum() + 0.1 * entropy.sum()).backward()
        grads = [param.grad.clone() for param in policy.model.parameters()]
        results.append((logps.detach(), entropy.detach(), grads))
    policy.model.zero_grad()
    (logps, entropy, grads), (chunked, chunked_entropy, chunked_grads) = results
    assert torch.allclose(logps, chunked, atol=1e-6) and torch.allclose(entropy, chunked_entropy, atol=1e-6)
    for whole, part in zip(grads, chunked_grads, strict=True):
        assert torch.allclose(whole, part, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("at_once", [2**25, 264 * 3])
def test_what_no_loss_reads_has_no_graph(policy, at_once):
    """In chunks its share would stay in memory until the last chunk is done: eight bytes for each of all logits."""
    batch = pad_batch(SEQUENCES, MASKS, 0, CPU)
    scorer = Scorer(policy.model)
    for reads in ((), ("logps",), ("logps", "entropy")):
        logps, entropy = scorer(batch, 1.0, True, at_once, reads=reads)[:2]
        assert (logps.requires_grad, entropy.requires_grad) == ("logps" in reads, "entropy" in reads)


def test_never_more_than_a_chunk_of_logits(policy):
    """The head sees only masked positions, and at most three of them at a time."""
    batch = pad_batch(SEQUENCES, MASKS, 0, CPU)
    seen = []
    head = policy.model.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    scorer = Scorer(policy.model)
    seen.clear()  # the probe of the constructor
    scorer(batch, 1.0, False, 264 * 3)
    handle.remove()
    assert max(seen) <= 3 and sum(seen) == int(batch.mask_BT.sum())


def test_a_batch_of_nothing_has_a_gradient_of_zero(policy):
    for batch in (pad_batch([], [], 0, CPU), pad_batch([[5, 6, 7]], [[0.0, 0.0, 0.0]], 0, CPU)):
        logps = Scorer(policy.model)(batch, 1.0, False)[0]
        assert not logps.any()
        logps.sum().backward()
        assert not policy.model.get_input_embeddings().weight.grad.any()
        policy.model.zero_grad()


def test_a_head_that_is_not_last_goes_through_the_whole_forward(policy):
    """Some architectures scale or cap their logits behind the head."""
    own = tiny_policy()
    plain = Scorer(own.model)(pad_batch(SEQUENCES, MASKS, 0, CPU), 1.0, False)[0]
    whole = own.model.forward

    def scaled(*args, **kwargs):
        output = whole(*args, **kwargs)
        output.logits = output.logits * 3.0
        return output

    own.model.forward = scaled
    scorer = Scorer(own.model)
    assert not scorer.splits
    got = scorer(pad_batch(SEQUENCES, MASKS, 0, CPU), 3.0, False)[0]
    assert torch.allclose(got, plain, atol=1e-5)
