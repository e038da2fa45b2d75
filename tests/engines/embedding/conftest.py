"""A model for each test to change at will; what is converted of an unchanged one is kept."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


#: Tests of the conversion itself.
CONVERTING = ("test_conversion.py",)


@pytest.fixture
def model(small_model: Any) -> Any:
    """Return a copy of the small model."""
    return copy.deepcopy(small_model)


@pytest.fixture
def whole_model(minilm: Any) -> Any:
    """Return a copy of the packaged model."""
    return copy.deepcopy(minilm)


@pytest.fixture(autouse=True)
def conversions_are_kept(request: pytest.FixtureRequest) -> None:
    """Convert each model once, but where the conversion is what is tested."""
    if request.path.name in CONVERTING or request.node.get_closest_marker("processes"):
        return
    request.getfixturevalue("kept_conversions")
