"""Fixtures that several stages' tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def answering_policy():
    from tests.stages.answering import trained_model

    return trained_model()
