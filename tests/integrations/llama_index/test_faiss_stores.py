"""LlamaIndex's FAISS store finds what it finds by itself, and its searches share calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("llama_index.vector_stores.faiss")

import faiss
import numpy as np
from idle_accelerators import soon_idle
from li_programs import EchoLLM, HashEmbedding, nodes_of, recording, run_in_loop
from li_stores import aoutcome, node, outcome, question, searched, vectors
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import MetadataFilters
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from llama_index_rag_accel import accelerate, activate, coverage, explain
from rag_accel import Accelerator
from rag_accel.adoption import clients
from rag_accel.engines.retrieval.vectors.vectors import thread_count

DIMENSION, FEW = 64, 9
LARGE = clients.MIN_NUMBERS // DIMENSION + 1
ROWS = np.array(vectors(LARGE, 1, DIMENSION), dtype=np.float32)
QUESTIONS = [question(one) for one in vectors(32, dimension=DIMENSION)]
INNER = faiss.METRIC_INNER_PRODUCT


def store_over(factory: str, count: int, metric: int = faiss.METRIC_L2) -> FaissVectorStore:
    index = faiss.index_factory(DIMENSION, factory, metric)
    index.train(ROWS)
    index.add(ROWS[:count])
    return FaissVectorStore(index)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Have FAISS round as on one thread, which it does in every call that searches share."""
    with thread_count(1):
        yield


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have no search count as alone; give the threads that made them."""
    seen, ident = list[int](), threading.get_ident
    monkeypatch.setattr(clients._searches, "begin", lambda index: seen.append(ident()))
    return seen


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an engine search any index that is not empty."""
    monkeypatch.setattr(clients, "MIN_NUMBERS", 1)


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, INNER])
def test_searches_find_the_same_in_shared_calls_off_the_loop(
    metric: int, accelerator: Accelerator, searching: list[int]
) -> None:
    store = store_over("Flat", LARGE, metric)
    plain = [outcome(store, one) for one in QUESTIONS]
    with activate(accelerator), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda one: outcome(store, one), QUESTIONS)) == plain
    fast = accelerate(store, accelerator=accelerator)

    async def search() -> Any:
        searching.clear()  # a thread that has ended may leave its number to the loop's
        found = await asyncio.gather(*(aoutcome(fast, one) for one in QUESTIONS))
        return found, threading.get_ident()

    found, loop = run_in_loop(search())
    assert found == plain
    assert loop not in searching
    assert soon_idle(accelerator)
    engines: Any = accelerator.metrics.snapshot()["engines"]
    (engine,) = (one for name, one in engines.items() if name.startswith("retrieval#"))
    assert engine["items"] == 64
    assert engine["steps"] < 64
    assert "share looks at its index" in explain(fast)
    assert "FaissVectorStore.aquery leaves its loop free" in explain(fast)


@pytest.mark.usefixtures("any_size")
def test_a_search_without_another_is_the_stores_own(accelerator: Accelerator) -> None:
    store = store_over("Flat", FEW)
    fast = accelerate(store, accelerator=accelerator)
    with coverage(fast) as seen:
        assert fast.query(QUESTIONS[0]) == store.query(QUESTIONS[0])
    (call,) = seen.calls
    assert call.reason == "the store itself makes a search that overlaps no other"
    assert searched(accelerator) == 0


@pytest.mark.usefixtures("any_size", "searching")
@pytest.mark.parametrize("count", [FEW, 0])
def test_an_odd_search_ends_as_the_stores_does(count: int, accelerator: Accelerator) -> None:
    store, ones = store_over("Flat", count), [1.0] * DIMENSION
    fast = accelerate(store, accelerator=accelerator)
    vectors_of_no_index = [question(one) for one in ([1.0], None, [float("nan")] * DIMENSION)]
    filtered = question(ones, filters=MetadataFilters(filters=[]))
    for asked in (*vectors_of_no_index, question(ones, 0), question(ones, FEW + 1), filtered):
        plain = outcome(store, asked)
        assert outcome(fast, asked) == plain
        assert run_in_loop(aoutcome(fast, asked)) == plain


@pytest.mark.usefixtures("any_size", "searching")
def test_an_index_that_changes_is_searched_as_it_is(accelerator: Accelerator) -> None:
    store, (one,) = store_over("Flat", FEW), vectors(1, 7, DIMENSION)
    fast = accelerate(store, accelerator=accelerator)
    assert fast.query(question(one, 1)).ids != [str(FEW)]
    store.add([node("near", one)])
    assert fast.query(question(one, 1)).ids == [str(FEW)]
    store.client.remove_ids(np.arange(FEW))
    assert fast.query(question(one)).ids == ["0"]
    assert searched(accelerator) == 3


def test_stores_that_no_engine_searches_say_why(accelerator: Accelerator) -> None:
    mapped = FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(DIMENSION)))
    for store, reason in (
        (store_over("Flat", FEW), "(small: 9 x 64 numbers, searched from 2,000,000 on)"),
        (store_over("IVF1,Flat", FEW), "its index is a IndexIVFFlat; searches of IndexFlatL2"),
        (mapped, "FaissMapVectorStore overrides a method of FaissVectorStore"),
    ):
        fast = accelerate(store, accelerator=accelerator)
        assert reason in explain(fast)
        assert "aquery blocks its loop: thread_safe_classes does not name" in explain(fast)
        assert outcome(fast, QUESTIONS[0]) == outcome(store, QUESTIONS[0])
    assert searched(accelerator) == 0


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_program_over_the_store_shows_the_same(
    accelerator: Accelerator, is_async: bool, searching: list[int]
) -> None:
    nodes = [TextNode(id_=str(number), text=f"text {number}") for number in range(40)]
    context = StorageContext.from_defaults(vector_store=FaissVectorStore(faiss.IndexFlatL2(16)))
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=HashEmbedding())
    plain = index.as_query_engine(llm=EchoLLM(), similarity_top_k=3)

    async def aquery(engine: Any) -> Any:
        searching.append(threading.get_ident())
        return await engine.aquery("when?")

    def ask(engine: Any) -> Any:
        answer = run_in_loop(aquery(engine)) if is_async else engine.query("when?")
        return str(answer), nodes_of(answer)

    with recording() as expected:
        answer = ask(plain)
    with recording() as found:
        assert ask(accelerate(plain, accelerator=accelerator)) == answer
    assert found == expected
    assert searched(accelerator) == 1
    assert not is_async or searching[-1] != searching[-2]
