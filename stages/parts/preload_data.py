"""Imported first by the fork server: enough for stages without a model, which begin while the rest is loaded."""

from __future__ import annotations

import numpy  # noqa: F401
import reasoning_gym  # noqa: F401
import torch  # noqa: F401
