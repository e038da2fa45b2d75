"""A search of a large FAISS store waits for the step that is under way, and for no other."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from langchain_rag_accel import activate
from rag_accel import Accelerator
from rag_accel.engines.retrieval import flat_index_engine
from rag_accel.engines.retrieval.flat_index_engine import FlatIndexEngine
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.recognition import clients
from rag_accel.recognition.clients import MIN_NUMBERS

DIMENSION, SEARCHES, CALLERS = 64, 40, 64
COUNT = MIN_NUMBERS // DIMENSION + 1
PATIENCE_S = 30.0


@pytest.fixture
def store() -> FAISS:
    """Return a store of random vectors, large enough for an engine."""
    index = faiss.IndexFlatL2(DIMENSION)
    index.add(np.random.default_rng(1).normal(size=(COUNT, DIMENSION)).astype(np.float32))
    return FAISS(
        DeterministicFakeEmbedding(size=DIMENSION),
        index,
        InMemoryDocstore(
            {str(at): Document(str(at), id=str(at), metadata={"number": at}) for at in range(COUNT)}
        ),
        {at: str(at) for at in range(COUNT)},
    )


@pytest.fixture
def never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each search of an index be made as if others were under way."""
    monkeypatch.setattr(clients._searches, "begin", lambda index: False)


class Gate:
    """A first step that waits until so many searches have been asked for; notes each step's.

    Args:
        number: of the searches.
        monkeypatch: puts it into the engine.
        driver: of the accelerator; searches count once it has them.
    """

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
        self.sizes = list[int]()
        self._number, self._asked = number, list[Any]()
        self._may_go_on = threading.Event()
        self._step, self._submit = FlatIndexEngine.step, driver.submit
        gate = self

        def step(engine: FlatIndexEngine, budget: Any) -> Any:
            gate.sizes.append(len(engine._pending))
            if len(gate.sizes) == 1:
                assert gate._may_go_on.wait(PATIENCE_S)
            return gate._step(engine, budget)

        def submit(*args: Any) -> None:
            gate._submit(*args)
            gate._asked.append(args)
            if len(gate._asked) == gate._number:
                gate._may_go_on.set()

        monkeypatch.setattr(FlatIndexEngine, "step", step)
        monkeypatch.setattr(driver, "submit", submit)


@pytest.mark.usefixtures("never_alone")
async def test_all_that_come_while_a_step_is_under_way_are_in_the_next(
    store: FAISS, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(SEARCHES, monkeypatch, accelerator.leaves.driver)
    queries = np.random.default_rng(2).normal(size=(SEARCHES, DIMENSION)).tolist()
    plain = [store.similarity_search_by_vector(one, 3) for one in queries]
    with activate(accelerator):
        found = await asyncio.gather(
            *(store.asimilarity_search_by_vector(one, 3) for one in queries)
        )
    assert found == plain
    assert sum(gate.sizes) == SEARCHES
    assert len(gate.sizes) <= 4


@pytest.mark.usefixtures("never_alone")
def test_threads_with_filters_and_other_ks_share_steps_and_a_wrong_search_fails_alone(
    store: FAISS, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[int]()
    fetch, scan = flat_index_engine.fetch_together, FlatIndexEngine._scan

    def fetched(view: Any, queries: Any, count: int) -> Any:
        looks.append(len(queries))
        return fetch(view, queries, count)

    def scanned(engine: FlatIndexEngine, queries: Any, k: int) -> Any:
        looks.append(len(queries))
        return scan(engine, queries, k)

    def is_even(metadata: dict[str, Any]) -> bool:
        return metadata["number"] % 2 == 0

    def search(at: int) -> list[tuple[Document, float]]:
        more: dict[str, Any] = {"filter": is_even} if at % 3 == 2 else {}
        found = store.similarity_search_with_score(f"question {at}", 3 + at % 3, **more)
        return [(document, float(score)) for document, score in found]

    with thread_count(1):
        plain = [search(at) for at in range(CALLERS)]
    gate = Gate(CALLERS, monkeypatch, accelerator.leaves.driver)
    monkeypatch.setattr(flat_index_engine, "MIN_NUMBERS", 0)
    monkeypatch.setattr(flat_index_engine, "fetch_together", fetched)
    monkeypatch.setattr(FlatIndexEngine, "_scan", scanned)
    with activate(accelerator), ThreadPoolExecutor(CALLERS + 1) as pool:
        wrong = pool.submit(store.similarity_search_by_vector, [0.0] * (DIMENSION + 1), 3)
        found = list(pool.map(search, range(CALLERS), timeout=PATIENCE_S))
        with pytest.raises(AssertionError):  # as FAISS says it
            wrong.result(PATIENCE_S)
    assert found == plain
    assert sum(gate.sizes) == CALLERS
    assert len(gate.sizes) <= 4
    # A step has at most three: of k of 3, of 4, and of the 20 of which a filter leaves 5.
    assert sum(looks) == CALLERS
    assert len(looks) <= 3 * len(gate.sizes)
