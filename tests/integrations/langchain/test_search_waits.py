"""A search of a large FAISS store waits for the step that is under way, and for no other."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
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
from rag_accel.adoption import clients
from rag_accel.adoption.clients import MIN_NUMBERS
from rag_accel.engines.retrieval.flat_index_engine import FlatIndexEngine

DIMENSION, SEARCHES = 64, 40
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
        InMemoryDocstore({str(at): Document(str(at), id=str(at)) for at in range(COUNT)}),
        {at: str(at) for at in range(COUNT)},
    )


@pytest.fixture
def never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each search of an index be made as if others were under way."""
    monkeypatch.setattr(clients._searches, "under_way", lambda index: nullcontext(False))


@pytest.mark.usefixtures("never_alone")
async def test_all_that_come_while_a_step_is_under_way_are_in_the_next(
    store: FAISS, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FlatIndexEngine.step
    sizes, waiting, may_go_on = list[int](), list[Any](), threading.Event()

    def noted(self: FlatIndexEngine, budget: Any) -> Any:
        sizes.append(len(self._pending))
        if len(sizes) == 1:
            assert may_go_on.wait(PATIENCE_S)
        return step(self, budget)

    leaves = type(accelerator.leaves)
    compute = leaves.compute

    def asked(*args: Any) -> Any:
        waiting.append(args)
        if len(waiting) == SEARCHES:
            may_go_on.set()
        return compute(*args)

    monkeypatch.setattr(FlatIndexEngine, "step", noted)
    monkeypatch.setattr(leaves, "compute", asked)
    queries = np.random.default_rng(2).normal(size=(SEARCHES, DIMENSION)).tolist()
    plain = [store.similarity_search_by_vector(one, 3) for one in queries]
    with activate(accelerator):
        found = await asyncio.gather(
            *(store.asimilarity_search_by_vector(one, 3) for one in queries)
        )
    assert found == plain
    assert sum(sizes) == SEARCHES
    # The last to ask may miss the second step by a moment.
    assert len(sizes) <= 4
