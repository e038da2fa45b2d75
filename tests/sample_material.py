"""Fixtures: the corpus and the graph of the running Python, read once for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rag_accel.sample import LibraryGraph, LoadReport


@pytest.fixture(scope="session")
def corpus() -> LoadReport:
    from rag_accel.sample import read_corpus

    return read_corpus(2200)


@pytest.fixture(scope="session")
def library() -> LibraryGraph:
    from rag_accel.sample import read_library_graph

    return read_library_graph()
