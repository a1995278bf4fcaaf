"""Advantages of a whole rollout, and which responses stay in the loss.

What differs from the textbook: groups are explicit ids, never prompt texts, so two equal prompts stay apart and no
group falls apart into singletons. A reward may be NaN ("cannot be judged"): that response leaves its group's
statistics and the denominators of the loss. A group of equal rewards gets exactly 0, never float noise over eps.
Give the rewards of *all* ranks at once: whitening is over the batch, and constant groups are counted once.
Shapes: N responses; everything lives on the CPU in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.parts.losses.algorithms import ALGORITHMS
from stages.parts.losses.baselines import CONSTANT_BELOW, centred_where_grouped, group_stds, whiten
from stages.parts.losses.config import AlgorithmConfig
from stages.parts.losses.papers import PAPERS


@dataclass
class AdvantageResult:
    """Advantages and what became of each response."""

    advantages_N: Tensor  # 0 where there is nothing to learn; the mean over tokens where those differ
    kept_N: Tensor  # bool: stays in the numerator and the denominators of the loss
    constant_N: Tensor  # bool: nothing to compare within its group; dynamic sampling draws such groups again
    stats: dict[str, float]  # counts of the rollout, and reward_mean, reward_std (the mean of the groups' stds)
    token_advantages_N: list[Tensor] | None = None  # where they differ within a response: one vector each

    def of_response(self, index: int, length: int) -> Tensor:
        """The advantage of each of the response's `length` tokens."""
        if self.token_advantages_N is not None:
            return self.token_advantages_N[index]
        return self.advantages_N[index].expand(length)


def group_advantages(
    rewards_N: Tensor,
    group_N: Tensor,
    valid_N: Tensor,
    cfg: AlgorithmConfig,
    *,
    kl_N: list[Tensor] | None = None,
    filter_N: Tensor | None = None,
) -> AdvantageResult:
    """Outcome rewards to advantages, by the row `cfg.name`.

    rewards_N: shaped rewards; NaN where a response cannot be judged. valid_N: bool, False says the same.
    group_N: any integer id a response; equal ids are one group.
    kl_N: with `kl_place: reward`, the KL estimates on each response's tokens (old policy against the reference).
        A response pays beta times their sum; under reinforce_pp each token pays for those still to come.
    filter_N: what decides whether a group is constant, by default the reward; DAPO's Eq. 11 looks at accuracy alone.

    Fewer than two judged responses under a group baseline: A = 0, and the group counts as constant. `drop` and
    `resample` take constant groups out of the loss (drawing again is the caller's loop); `keep` leaves their KL term.
    """
    row = ALGORITHMS[cfg.name]
    rollout = _judge(rewards_N, group_N, valid_N, cfg)
    advantages_N = torch.zeros_like(rollout.rewards_N)
    tokens_N = None
    if kl_N is not None and row.kl_to_go:
        tokens_N = _kl_to_go(rollout, kl_N, cfg)
        advantages_N = _means(tokens_N)
    elif rollout.compared_N.any():
        paid_N = rollout.rewards_N if kl_N is None else rollout.rewards_N - cfg.beta * _sums(kl_N)
        chosen_N = rollout.compared_N
        advantages_N[chosen_N] = row.advantage(paid_N[chosen_N], rollout.group_N[chosen_N], cfg)
        advantages_N[~_varied(rollout, paid_N, rollout.group_N, chosen_N)[rollout.group_N]] = 0.0
    decides_N = rollout.rewards_N if filter_N is None else filter_N.cpu().double()
    varied_P = _varied(rollout, decides_N, rollout.group_N, rollout.compared_N)
    return _result(rollout, advantages_N, tokens_N, ~varied_P[rollout.group_N], cfg)


def process_advantages(
    step_rewards_N: list[Tensor],
    step_ends_N: list[Tensor],
    lengths_N: list[int],
    group_N: Tensor,
    valid_N: Tensor,
    cfg: AlgorithmConfig,
) -> AdvantageResult:
    """Step rewards to token advantages (DeepSeekMath, section 4.1.3).

    All step rewards of a group are normalised together, by the row's own baseline; the advantage of a token is the
    sum of the normalised rewards of the steps that end at or after it.

    step_rewards_N: the rewards of each response's steps, in order; step_ends_N: index within the response of each
    step's last token; lengths_N: response tokens. A response without steps learns nothing.
    """
    rollout = _judge(_sums(step_rewards_N), group_N, valid_N, cfg)
    owner_S = torch.repeat_interleave(torch.tensor([len(steps) for steps in step_rewards_N]))
    rewards_S = torch.cat([steps.double() for steps in step_rewards_N])
    groups_S, compared_S = rollout.group_N[owner_S], rollout.compared_N[owner_S]
    normal_S = torch.zeros_like(rewards_S)
    if compared_S.any():
        row = ALGORITHMS[cfg.name]
        normal_S[compared_S] = row.advantage(rewards_S[compared_S], groups_S[compared_S], cfg)
    varied_P = _varied(rollout, rewards_S, groups_S, compared_S)
    normal_S[~varied_P[groups_S]] = 0.0
    tokens_N = []
    for i, length in enumerate(lengths_N):
        at_end_T = torch.zeros(length, dtype=torch.float64).index_add_(0, step_ends_N[i].long(), normal_S[owner_S == i])
        tokens_N.append(_to_go(at_end_T))
    return _result(rollout, _means(tokens_N), tokens_N, ~varied_P[rollout.group_N], cfg)


@dataclass
class _Judged:
    """A rollout with dense group ids and the responses that can be compared with another one."""

    rewards_N: Tensor
    group_N: Tensor  # 0..P-1
    valid_N: Tensor
    compared_N: Tensor  # bool: judged, and so is another of its group (or groups of one are legal)
    grouped: bool


def _judge(rewards_N: Tensor, group_N: Tensor, valid_N: Tensor, cfg: AlgorithmConfig) -> _Judged:
    rewards_N = rewards_N.detach().cpu().double()
    valid_N = valid_N.cpu().bool() & rewards_N.isfinite()
    group_N = torch.unique(group_N.cpu(), return_inverse=True)[1]
    grouped = PAPERS[cfg.name].group_baseline or bool((torch.bincount(group_N) > 1).any())
    if not grouped:
        return _Judged(rewards_N, group_N, valid_N, valid_N, grouped)
    judged_P = torch.bincount(group_N[valid_N], minlength=_groups(group_N))
    return _Judged(rewards_N, group_N, valid_N, valid_N & (judged_P[group_N] >= 2), grouped)


def _groups(group_N: Tensor) -> int:
    return int(group_N.max()) + 1 if len(group_N) else 0


def _varied(rollout: _Judged, values: Tensor, groups: Tensor, compared: Tensor) -> Tensor:
    """Bool a group [P]: its compared values differ. Where groups of one are legal, every group counts as varied."""
    if not rollout.grouped:
        return torch.ones(_groups(rollout.group_N), dtype=torch.bool)
    varied_P = torch.zeros(_groups(rollout.group_N), dtype=torch.bool)
    if compared.any():
        stds = group_stds(values[compared], groups[compared])
        varied_P[groups[compared][stds >= CONSTANT_BELOW]] = True
    return varied_P


def _kl_to_go(rollout: _Judged, kl_N: list[Tensor], cfg: AlgorithmConfig) -> list[Tensor]:
    """REINFORCE++: A_t = r - beta * sum of the KL at t and after, whitened over all tokens of the batch."""
    tokens_N = [torch.zeros(len(kl), dtype=torch.float64) for kl in kl_N]
    chosen = rollout.compared_N.nonzero().squeeze(1)
    if not len(chosen):
        return tokens_N
    centred = centred_where_grouped(rollout.rewards_N[chosen], rollout.group_N[chosen], cfg)
    returns = [c - cfg.beta * _to_go(kl_N[i].cpu().double()) for c, i in zip(centred, chosen.tolist(), strict=True)]
    whitened = whiten(torch.cat(returns), cfg.std_epsilon).split([len(r) for r in returns])
    for i, advantages_T in zip(chosen.tolist(), whitened, strict=True):
        tokens_N[i] = advantages_T
    return tokens_N


def _to_go(values_T: Tensor) -> Tensor:
    return values_T.flip(0).cumsum(0).flip(0)


def _sums(vectors_N: list[Tensor]) -> Tensor:
    return torch.stack([vector.cpu().double().sum() for vector in vectors_N])


def _means(vectors_N: list[Tensor]) -> Tensor:
    return torch.stack([vector.sum() / max(len(vector), 1) for vector in vectors_N])


def _result(
    rollout: _Judged, advantages_N: Tensor, tokens_N: list[Tensor] | None, constant_N: Tensor, cfg: AlgorithmConfig
) -> AdvantageResult:
    valid_N, group_N = rollout.valid_N, rollout.group_N
    kept_N = valid_N & ~constant_N if cfg.zero_variance in ("drop", "resample") else valid_N
    compared = group_N[rollout.compared_N]
    stats = {
        "responses": float(len(group_N)),
        "unjudgeable": float((~valid_N).sum()),
        "groups": float(_groups(group_N)),
        "constant_groups": float(len(group_N[constant_N].unique())),
        "undersized_groups": float(_groups(group_N) - len(compared.unique())),
    }
    if valid_N.any():
        stats["reward_mean"] = rollout.rewards_N[valid_N].mean().item()
    if len(compared):  # the mean over groups of the std within
        stds = group_stds(rollout.rewards_N[rollout.compared_N], compared)
        stats["reward_std"] = torch.stack([stds[compared == g][0] for g in compared.unique()]).mean().item()
    return AdvantageResult(advantages_N, kept_N, constant_N, stats, tokens_N)
