"""What must hold in the limits: on-policy, one token, equal distributions, no tokens, overwhelming KL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.parts.losses.algorithms import ALGORITHMS, LossInputs, policy_loss
from stages.parts.losses.config import DIVERGENCES
from stages.parts.losses.counts import BatchCounts, count_batch
from stages.parts.losses.distillation import token_divergence
from stages.parts.losses.kl import kl_estimate
from stages.parts.losses.reductions import REDUCTIONS
from tests.stages.losses import batches, naive


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n != "rloo"])
def test_on_policy_every_surrogate_has_the_gradient_of_reinforce(name):
    """ratio = 1: no bound is reached, and d(ratio * A) = A d(log pi). rloo's surrogate is REINFORCE itself."""
    responses = [replace(r, old=list(r.policy)) for r in naive.random_responses(1)]
    cfg = batches.config(name)
    advantages = batches.rollout_advantages(responses, cfg)
    batch = batches.micro_batch(responses, advantages)
    counts = batches.counts_of([batch])
    policy_loss(cfg, batch, counts)[0].backward()
    gradient = batch.policy_logps_BT.grad.clone()
    batch.policy_logps_BT.grad = None
    policy_loss(batches.config("rloo", reduction=cfg.reduction), batch, counts)[0].backward()
    assert gradient.abs().max() > 0
    assert (gradient - batch.policy_logps_BT.grad).abs().max() < 1e-12


def test_gspo_is_grpo_for_responses_of_one_token():
    responses = naive.random_responses(2, longest=1)
    gspo_loss, gspo = batches.loss_and_gradient(responses, batches.config("gspo"))
    grpo_loss, grpo = batches.loss_and_gradient(responses, batches.config("grpo"))
    assert gspo_loss == pytest.approx(grpo_loss, abs=1e-12)
    assert (batches.flat(gspo) - batches.flat(grpo)).abs().max() < 1e-12


def test_equal_distributions_have_no_distance():
    logps = -torch.rand(5, 7, dtype=torch.float64)
    for estimator in ("k1", "k2", "k3"):
        assert kl_estimate(estimator, logps, logps).abs().max() == 0
    logits = torch.randn(4, 9, dtype=torch.float64)
    for kind in DIVERGENCES:
        assert token_divergence(kind, logits, logits + 3.0).abs().max() < 1e-12


def test_kl_estimators_agree_in_expectation():
    """Exact expectations under the policy of a 6-token vocabulary: k1 and k3 are the KL, k2's gradient is the KL's."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(-1), torch.randn(6, dtype=torch.float64).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    weights = policy.exp().detach()
    for estimator in ("k1", "k3"):
        assert (weights * kl_estimate(estimator, policy, reference)).sum().item() == pytest.approx(exact.item())
    of_exact = torch.autograd.grad(exact, logits, retain_graph=True)[0]
    of = {
        name: torch.autograd.grad((weights * kl_estimate(name, policy, reference)).sum(), logits, retain_graph=True)[0]
        for name in ("k1", "k2", "k3")
    }
    assert (of["k2"] - of_exact).abs().max() < 1e-12
    assert of["k1"].abs().max() < 1e-12  # why k1 in the loss is an axis that does nothing
    assert (of["k3"] - of_exact).abs().max() > 1e-3


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_overwhelming_beta_keeps_the_policy_at_the_reference(estimator):
    def distance_after(beta: float) -> float:
        torch.manual_seed(1)
        reference = torch.randn(5, dtype=torch.float64).log_softmax(-1)
        logits = reference.clone().requires_grad_()
        cfg = batches.config("grpo", beta=beta, kl_estimator=estimator)
        for _ in range(60):  # a bandit that pays for token 0
            sampled = torch.multinomial(logits.detach().softmax(-1), 256, replacement=True)
            logps = logits.log_softmax(-1)[sampled].unsqueeze(1)
            rewards = (sampled == 0).double().unsqueeze(1)
            inputs = LossInputs(
                logps,
                logps.detach(),
                rewards - rewards.mean(),
                torch.ones_like(rewards),
                reference_logps_BT=reference[sampled].unsqueeze(1),
            )
            loss, _ = policy_loss(cfg, inputs, count_batch(inputs.mask_BT, 1))
            (gradient,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= 0.5 / (1.0 + beta) * gradient
        policy = logits.detach().log_softmax(-1)
        return (policy.exp() * (policy - reference)).sum().item()

    assert distance_after(0.0) > 0.1
    assert distance_after(1e3) < 1e-4


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_all_masked_batch_is_a_zero_loss(name, reduction):
    responses, cfg = naive.random_responses(0), batches.config(name, reduction=reduction, beta=0.1)
    batch = batches.micro_batch(responses, batches.rollout_advantages(responses, cfg))
    batch.mask_BT.zero_()
    for counts in (BatchCounts(0, 0, batches.LIMIT), BatchCounts(3, 17, batches.LIMIT)):
        batch.policy_logps_BT.grad = None
        loss, sums = policy_loss(cfg, batch, counts)
        loss.backward()
        assert loss.item() == 0 and batch.policy_logps_BT.grad.eq(0).all()
        assert all(value.isfinite() for value in sums.values())


def test_a_token_that_became_impossible_gives_a_finite_loss():
    policy = torch.tensor([[-1.0, -300.0]], requires_grad=True)
    inputs = LossInputs(
        policy,
        torch.tensor([[-300.0, -1.0]]),
        -torch.ones(1, 2),
        torch.ones(1, 2),
        reference_logps_BT=-torch.ones(1, 2),
    )
    for name in ALGORITHMS:
        policy.grad = None
        loss, _ = policy_loss(batches.config(name, beta=0.01), inputs, count_batch(inputs.mask_BT, 2))
        loss.backward()
        assert loss.isfinite() and policy.grad.isfinite().all()


@pytest.mark.parametrize(
    ("knobs", "missing"),
    [
        ({"beta": 0.1}, "reference_logps"),
        ({"importance_cap": 2.0}, "sampler_logps"),
        ({"entropy_bonus": 0.1}, "entropy"),
    ],
)
def test_an_absent_input_is_named(knobs, missing):
    inputs = LossInputs(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1))
    with pytest.raises(ValueError, match=missing):
        policy_loss(batches.config("grpo", **knobs), inputs, count_batch(inputs.mask_BT, 1))
