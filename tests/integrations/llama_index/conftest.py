"""A strict accelerator for each test, which must be empty when the test is over."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("llama_index.core")

from rag_accel import Accelerator
from rag_accel.interception.patches import patches

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "engines" / "llm"))  # how to serve

#: LlamaIndex leaves loops and the databases of its chat memory open, whoever runs it.
UPSTREAM = (
    "ignore:.*unclosed|.*aiosqlite:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for ignored in UPSTREAM:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours."""
    with Accelerator(strict=True) as made:
        yield made
        assert made.bypassed == {}


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    """Check that the classes are restored once no program lives."""
    yield
    gc.collect()
    assert patches.patched() == []
