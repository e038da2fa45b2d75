"""Searches of many callers at once, plain and accelerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from idle_accelerators import soon_idle
from langchain_core.embeddings import Embeddings

from rag_accel import Accelerator

COUNT, DIMENSION, CALLERS = 300, 16, 24
VECTORS: list[list[float]] = (
    np.random.default_rng(7).normal(size=(COUNT, DIMENSION)).astype(np.float32).tolist()
)
Search = Callable[[int], Any]


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


def shared_calls(accelerator: Accelerator) -> tuple[int, int]:
    """Return the calls that searches shared, and how many searches those were."""
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    found = [engine for name, engine in engines.items() if name.startswith("store#")]
    calls = sum(engine.get("store_calls", 0) for engine in found)
    return calls, sum(engine.get("searches_in_store_calls", 0) for engine in found)
