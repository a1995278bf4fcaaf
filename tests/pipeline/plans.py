"""A small recipe to plan, and what a refusal of it says."""

from __future__ import annotations

from functools import cache

import pytest

from pipeline.compose import compose
from pipeline.config import RunConfig
from pipeline.messages import Refused
from pipeline.plan import make_plan


@cache
def smoke() -> RunConfig:
    """r1_style at the scale of a minute; copy it before it is changed (the fixture `cfg` is a copy)."""
    return compose(["experiment=smoke"])


def refusal(cfg: RunConfig) -> list[str]:
    """The lines of a refusal."""
    with pytest.raises(Refused) as caught:
        make_plan(cfg)
    return str(caught.value).splitlines()


def wire(cfg: RunConfig, stage: str, **ports: str | None) -> None:
    cfg.stages[stage].inputs = {**cfg.stages[stage].inputs, **ports}
