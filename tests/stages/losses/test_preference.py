"""Bradley-Terry: numbers by hand, its definition in float64 with its gradient, limits, any split of the batch."""

from __future__ import annotations

import math
import random

import pytest
import torch

from stages.parts.losses.preference import bradley_terry_loss


def double(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        (1.5, 0.5, 0.3132616875),  # ln(1 + e^-1) = ln 1.3678794412
        (0.7, 0.7, 0.6931471806),  # ln 2: a coin
        (-1.0, 1.0, 2.1269280110),  # ln(1 + e^2) = ln 8.3890560989
        (900.0, -100.0, 0.0),
        (-100.0, 900.0, 1000.0),  # no overflow: -log sigmoid(-1000)
    ],
)
def test_golden(chosen, rejected, expected):
    loss, _ = bradley_terry_loss(double(chosen), double(rejected), pairs=1)
    assert float(loss) == pytest.approx(expected, abs=1e-9)


def test_golden_mean_gradient_and_centre():
    """Pairs (1.5, 0.5) and (-1, 1): (0.3132616875 + 2.1269280110) / 2 = 1.2200948493. d/dr_chosen of a pair is
    -sigmoid(-margin) / 2: -0.2689414214 / 2 and -0.8807970780 / 2. Centre 0.01: (2^2 + 0^2) * 0.01 / 2 = 0.02."""
    chosen, rejected = double(1.5, -1.0, grad=True), double(0.5, 1.0, grad=True)
    loss, sums = bradley_terry_loss(chosen, rejected, pairs=2)
    loss.backward()
    assert loss.item() == pytest.approx(1.2200948493, abs=1e-9)
    assert chosen.grad.tolist() == pytest.approx([-0.1344707107, -0.4403985390], abs=1e-9)
    assert rejected.grad.tolist() == pytest.approx([0.1344707107, 0.4403985390], abs=1e-9)
    centred, _ = bradley_terry_loss(chosen, rejected, pairs=2, centre_weight=0.01)
    assert (centred - loss).item() == pytest.approx(0.02, abs=1e-9)
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(
        {"loss": 2.4401896985, "nll": 2.4401896985, "right": 1.0, "margin": -1.0, "reward": 1.0}, abs=1e-9
    )


def naive(chosen: list[float], rejected: list[float], centre: float) -> tuple[float, list[float], list[float]]:
    """(loss, slopes by the chosen and by the rejected rewards), pair by pair from the definition of the sigmoid."""
    loss, up, down = 0.0, [], []
    for c, r in zip(chosen, rejected, strict=True):
        preferred = 1 / (1 + math.exp(r - c))
        loss += -math.log(preferred) + centre * (c + r) ** 2
        up.append((preferred - 1 + 2 * centre * (c + r)) / len(chosen))
        down.append((1 - preferred + 2 * centre * (c + r)) / len(chosen))
    return loss / len(chosen), up, down


@pytest.mark.parametrize("centre", [0.0, 0.01, 0.3])
def test_against_the_definition_for_every_split(centre):
    draw = random.Random(0)
    chosen, rejected = ([draw.gauss(0, 2) for _ in range(13)] for _ in range(2))
    loss, up, down = naive(chosen, rejected, centre)
    for size in (1, 4, 13):
        one, two = double(*chosen, grad=True), double(*rejected, grad=True)
        total = 0.0
        for start in range(0, 13, size):
            part, _ = bradley_terry_loss(one[start : start + size], two[start : start + size], 13, centre)
            part.backward()
            total += float(part)
        assert total == pytest.approx(loss, abs=1e-12)
        assert one.grad.tolist() == pytest.approx(up, abs=1e-12)
        assert two.grad.tolist() == pytest.approx(down, abs=1e-12)


def test_pairs_alone_know_differences_only():
    """Without the centre any constant may be added; with it the sum of all slopes pulls towards 0."""
    chosen, rejected = double(3.0, 2.0, grad=True), double(1.0, 2.5, grad=True)
    plain, _ = bradley_terry_loss(chosen, rejected, 2)
    moved, _ = bradley_terry_loss(chosen + 7, rejected + 7, 2)
    assert float(plain) == pytest.approx(float(moved))
    bradley_terry_loss(chosen, rejected, 2, centre_weight=0.01)[0].backward()
    assert float(chosen.grad.sum() + rejected.grad.sum()) > 0
