"""What the papers set, and which knobs a row never reads. Importable without torch: the plan argues from here.

`knobs` is what `conf/algorithm/<row>.yaml` says in its own words; a config that departs from it is still run, and the
plan says so. `pins` are the root knobs (beta, epsilon) that the paper fixes, so that sweeping them at the root is an
axis that does nothing on that row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLIP_KNOBS = ("epsilon", "epsilon_high", "dual_clip")


@dataclass(frozen=True)
class Paper:
    arxiv: str
    knobs: dict[str, Any]
    pins: tuple[str, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)  # knob -> why this row never reads it
    group_baseline: bool = True  # needs at least two responses a prompt
    has_ratio: bool = True  # corrects for the policy having moved since the rollout


_NO_STD = {"std": "{row} never divides by a group's std", "std_epsilon": "{row} never divides by a group's std"}
_NO_RATIO_MAX = {"ratio_max": "only cispo bounds the ratio by ratio_max"}
_NO_CLIP = dict.fromkeys(CLIP_KNOBS, "{row} clips no surrogate")

PAPERS: dict[str, Paper] = {
    "grpo": Paper(
        "2402.03300",
        {"reduction": "sequence_mean", "std": "population", "kl_estimator": "k3", "kl_place": "loss"},
        unread=_NO_RATIO_MAX,
    ),
    "dr_grpo": Paper(
        "2503.20783",
        {"reduction": "constant_length", "std": "none", "beta": 0.0, "truncated_reward": 0.0},
        pins=("beta",),
        unread={**_NO_STD, **_NO_RATIO_MAX},
    ),
    "dapo": Paper(
        "2503.14476",
        {
            "reduction": "token_mean",
            "std": "population",
            "beta": 0.0,
            "epsilon": 0.2,
            "epsilon_high": 0.28,
            "zero_variance": "resample",
        },
        pins=("beta", "epsilon"),
        unread=_NO_RATIO_MAX,
    ),
    "gspo": Paper(
        "2507.18071",
        {"reduction": "sequence_mean", "std": "population", "beta": 0.0, "epsilon": 3e-4, "epsilon_high": 4e-4},
        pins=("beta", "epsilon"),
        unread=_NO_RATIO_MAX,
    ),
    "cispo": Paper(
        "2506.13585",
        {"reduction": "token_mean", "std": "population", "beta": 0.0},
        pins=("beta",),
        unread=dict.fromkeys(CLIP_KNOBS, "cispo bounds the ratio by ratio_max alone"),
    ),
    "rloo": Paper(
        "2402.14740",
        {"reduction": "sequence_sum_mean", "kl_estimator": "k1", "kl_place": "reward"},
        unread={**_NO_CLIP, **_NO_STD, **_NO_RATIO_MAX},
        has_ratio=False,
    ),
    "reinforce_pp": Paper(
        "2501.03262",
        {"reduction": "token_mean"},  # its KL is in the reward with G=1, in the loss otherwise
        unread={"std": "reinforce_pp whitens over the whole batch", **_NO_RATIO_MAX},
        group_baseline=False,
    ),
}
