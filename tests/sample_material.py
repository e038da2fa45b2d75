"""Fixtures: the corpus and the graph of the running Python, read once for all tests."""

from __future__ import annotations

import pytest

from rag_accel.sample import LibraryGraph, LoadReport, read_corpus, read_library_graph


@pytest.fixture(scope="session")
def corpus() -> LoadReport:
    return read_corpus(2200)


@pytest.fixture(scope="session")
def library() -> LibraryGraph:
    return read_library_graph()
