"""A model for each test to change at will."""

from __future__ import annotations

import copy
from typing import Any

import pytest


@pytest.fixture
def model(small_model: Any) -> Any:
    """Return a copy of the small model."""
    return copy.deepcopy(small_model)


@pytest.fixture
def whole_model(minilm: Any) -> Any:
    """Return a copy of the packaged model."""
    return copy.deepcopy(minilm)
