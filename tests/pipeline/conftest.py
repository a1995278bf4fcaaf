"""Fixtures that several tests of the driver share."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from pipeline.config import RunConfig
from tests.pipeline.plans import smoke


@pytest.fixture
def cfg(tmp_path: Path) -> RunConfig:
    """A copy of a small recipe with a store of its own."""
    cfg = copy.deepcopy(smoke())
    cfg.output_dir = str(tmp_path)
    return cfg
