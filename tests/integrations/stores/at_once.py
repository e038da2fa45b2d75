"""Searches of many callers at once, plain and accelerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from idle_accelerators import soon_idle
from langchain_core.embeddings import Embeddings

import langchain_rag_accel
from rag_accel import Accelerator

COUNT, DIMENSION, CALLERS = 300, 16, 24
VECTORS: list[list[float]] = (
    np.random.default_rng(7).normal(size=(COUNT, DIMENSION)).astype(np.float32).tolist()
)
Search = Callable[[int], Any]
SAME = HealthCheck.function_scoped_fixture
#: of tests of properties, whose stores stay the same
PROPERTY = settings(deadline=None, max_examples=25, suppress_health_check=[SAME])
#: values of which some are equal, or print the same, and others no server takes
VALUES = st.sampled_from((0, 1, 2, 0.0, -0.0, 1.0, True, False, "1", "True", None, float("nan")))


class Numbered(Embeddings):
    """Embeddings of texts that begin with the number of a vector."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        number = text.split()[0]
        return VECTORS[int(number) if number.isdecimal() else 0]


def outcome(search: Search, number: int) -> Any:
    """Return what a search returns, or its error as text."""
    try:
        return search(number)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def at_once(search: Search, numbers: Sequence[int]) -> list[Any]:
    """Return the outcomes of searches that as many threads make."""
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(lambda number: outcome(search, number), numbers))


def within(
    accelerator: Accelerator, search: Search, activate: Any = langchain_rag_accel.activate
) -> Search:
    """Return a search that is made with an accelerator."""

    def accelerated(number: int) -> Any:
        with activate(accelerator):
            return search(number)

    return accelerated


def were_shared(accelerator: Accelerator) -> bool:
    """Tell whether several searches went in one call."""
    return 0 < count(accelerator, "store_calls") < count(accelerator, "searches_in_store_calls")


def count(accelerator: Accelerator, name: str) -> int:
    """Return a count of the engines of stores."""
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(found.get(name, 0) for key, found in engines.items() if key.startswith("store#"))
