"""Fixtures: what was converted of a model of embeddings is kept for all tests of a process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "engines" / "embedding"))  # how to keep graphs


@pytest.fixture
def kept_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert each model once in this process."""
    pytest.importorskip("torch")
    import conversion_cache

    from rag_accel.engines.embedding import compiled_model

    conversion_cache.use(monkeypatch, compiled_model)


@pytest.fixture(scope="session", autouse=True)
def no_conversion_stays() -> Iterator[None]:
    """Delete what was kept when the tests are over."""
    yield
    if "conversion_cache" in sys.modules:
        sys.modules["conversion_cache"].forget()
