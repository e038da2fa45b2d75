"""Fixtures: the corpus and the graph of the running Python, read once for all workers."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

from rag_accel.sample import LibraryGraph, LoadReport, read_corpus, read_library_graph

T = TypeVar("T")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LoadReport:
    return _once(tmp_path_factory, "corpus", lambda: read_corpus(2200))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> LibraryGraph:
    return _once(tmp_path_factory, "library", read_library_graph)


def _once(factory: pytest.TempPathFactory, name: str, read: Callable[[], T]) -> T:
    """Return what the first worker reads, which takes seconds; the others wait for its file."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return read()
    file = factory.getbasetemp().parent / f"{name}.pickle"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_bytes(pickle.dumps(read()))
        return pickle.loads(file.read_bytes())
