"""A recognised store's searches run on an owned engine, and find what the store finds."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from idle_accelerators import soon_idle
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.owned_search import is_recognised
from rag_accel import Accelerator
from rag_accel.adoption import store_copies

DIMENSION = 8
COUNT = 300


def vector(*values: float) -> list[float]:
    """Return a vector that begins with these numbers."""
    return [*values, *[0.0] * (DIMENSION - len(values))]


def store_of(vectors: Sequence[Sequence[float]]) -> InMemoryVectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=DIMENSION))
    for number, one in enumerate(vectors):
        put(store, str(number), list(one))
    return store


def put(store: InMemoryVectorStore, id: str, one: Any) -> None:
    """Put an entry into a store beside its methods."""
    store.store[id] = {"id": id, "vector": one, "text": f"text {id}", "metadata": {"id": id}}


@pytest.fixture(autouse=True)
def any_store_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a copy be made of stores of any size, at the first search."""
    monkeypatch.setattr(store_copies, "MIN_ENTRIES", 1)
    monkeypatch.setattr(store_copies, "MIN_NUMBERS", 1)
    monkeypatch.setattr(store_copies, "SEARCHES", 0)


@pytest.fixture
def store() -> InMemoryVectorStore:
    """Give a store of random vectors, some of them twice."""
    rows = np.random.default_rng(5).normal(size=(COUNT, DIMENSION))
    rows[7] = rows[100] = rows[200]
    return store_of(rows.tolist())


Find = Callable[[InMemoryVectorStore, list[float], int], Any]

SYNC: dict[str, Find] = {
    "by vector": lambda store, query, k: store.similarity_search_by_vector(query, k),
    "with score by vector": lambda store, query, k: store.similarity_search_with_score_by_vector(
        query, k
    ),
    "diverse by vector": lambda store, query, k: store.max_marginal_relevance_search_by_vector(
        query, k, fetch_k=2 * k
    ),
    "by text": lambda store, query, k: store.similarity_search(str(query), k),
    "with score": lambda store, query, k: store.similarity_search_with_score(str(query), k),
    "diverse": lambda store, query, k: store.max_marginal_relevance_search(str(query), k),
    "retriever": lambda store, query, k: store.as_retriever(search_kwargs={"k": k}).invoke(
        str(query)
    ),
}
ASYNC: dict[str, Find] = {
    "by vector": lambda store, query, k: store.asimilarity_search_by_vector(query, k),
    "diverse by vector": lambda store, query, k: store.amax_marginal_relevance_search_by_vector(
        query, k, fetch_k=2 * k
    ),
    "by text": lambda store, query, k: store.asimilarity_search(str(query), k),
    "with score": lambda store, query, k: store.asimilarity_search_with_score(str(query), k),
    "diverse": lambda store, query, k: store.amax_marginal_relevance_search(str(query), k),
    "retriever": lambda store, query, k: store.as_retriever(search_kwargs={"k": k}).ainvoke(
        str(query)
    ),
}


def queries(count: int = 4) -> list[list[float]]:
    return np.random.default_rng(6).normal(size=(count, DIMENSION)).tolist()


def engines(accelerator: Accelerator) -> dict[str, Any]:
    assert soon_idle(accelerator)
    found: Any = accelerator.metrics.snapshot().get("engines", {})
    return {name: engine for name, engine in found.items() if name.startswith("retrieval#")}


@pytest.mark.cross_product(keep=8)
@pytest.mark.parametrize("k", [1, 4, COUNT - 1, COUNT, COUNT + 1])
@pytest.mark.parametrize("way", SYNC)
def test_every_search_finds_what_the_store_finds(
    store: InMemoryVectorStore, accelerator: Accelerator, way: str, k: int
) -> None:
    find = SYNC[way]
    plain = [find(store, query, k) for query in queries()]
    with activate(accelerator):
        assert [find(store, query, k) for query in queries()] == plain
    fast = accelerate(store, accelerator=accelerator)
    assert [find(fast, query, k) for query in queries()] == plain
    assert engines(accelerator)


@pytest.mark.cross_product(keep=6)
@pytest.mark.parametrize("k", [1, 4, COUNT + 1])
@pytest.mark.parametrize("way", ASYNC)
async def test_every_coroutine_finds_what_the_store_finds(
    store: InMemoryVectorStore, accelerator: Accelerator, way: str, k: int
) -> None:
    find = ASYNC[way]
    plain = [await find(store, query, k) for query in queries()]
    with activate(accelerator):
        assert await asyncio.gather(*(find(store, query, k) for query in queries())) == plain
    fast = accelerate(store, accelerator=accelerator)
    assert [await find(fast, query, k) for query in queries()] == plain
    assert engines(accelerator)


ENTRY = st.lists(st.integers(-2, 2), min_size=2, max_size=2)
CHANGE = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 9), ENTRY),
    st.tuples(st.just("again"), st.integers(0, 9), ENTRY),
    st.tuples(st.just("delete"), st.integers(0, 9), ENTRY),
    st.tuples(st.just("vector"), st.integers(0, 9), ENTRY),
    st.tuples(st.just("text"), st.integers(0, 9), ENTRY),
    st.tuples(st.just("shared"), st.integers(0, 9), ENTRY),
)


def change(store: InMemoryVectorStore, how: str, number: int, numbers: list[int]) -> None:
    """Change a store in one of the ways in which programs do."""
    id, one = str(number), vector(*map(float, numbers))
    entry = store.store.get(id)
    if how == "delete":
        store.delete([id])
    elif how == "again":
        store.store[id] = store.store.pop(id, None) or {
            "id": id,
            "vector": one,
            "text": "again",
            "metadata": {},
        }
    elif how == "vector" and entry is not None:
        entry["vector"] = one
    elif how == "text" and entry is not None:
        entry["text"] = f"{numbers}"
    elif how == "shared" and store.store:
        put(store, id, next(iter(store.store.values()))["vector"])
    else:
        put(store, id, one)


@given(changes=st.lists(CHANGE, max_size=25), query=ENTRY, k=st.integers(1, 6))
def test_whatever_is_changed_beside_us_is_seen_by_the_next_search(
    changes: list[tuple[str, int, list[int]]], query: list[int], k: int
) -> None:
    store, asked = store_of([]), vector(1.0 + query[0], 0.5 + query[1])
    with Accelerator(strict=True) as accelerator:
        for one in changes:
            change(store, *one)
            plain = outcome(store, asked, k)
            with activate(accelerator):
                assert outcome(store, asked, k) == plain


def test_a_search_beside_changes_finds_what_was_there_at_some_moment(
    store: InMemoryVectorStore, accelerator: Accelerator
) -> None:
    stop, failed = threading.Event(), list[Any]()
    near = vector(5.0, 5.0, 5.0)
    put(store, "near", near)

    def shuffle() -> None:
        chance = random.Random(1)
        while not stop.is_set():
            number = str(chance.randrange(COUNT))
            store.store[number] = dict(store.store[number], vector=queries(1)[0])
            store.store.pop(f"more {chance.randrange(20)}", None)
            put(store, f"more {chance.randrange(20)}", [-value for value in near])

    def search() -> None:
        for _ in range(8):
            found = store.similarity_search_by_vector(near, 1)
            if [document.id for document in found] != ["near"]:
                failed.append(found)

    changer = threading.Thread(target=shuffle)
    with activate(accelerator):
        changer.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: search(), range(8)))
        finally:
            stop.set()
            changer.join()
    assert failed == []
    assert accelerator.bypassed == {}


def test_a_vector_changed_in_its_place_is_noticed_where_it_is_found(
    store: InMemoryVectorStore, accelerator: Accelerator
) -> None:
    (query,) = queries(1)
    with activate(accelerator):
        (first, *_) = store.similarity_search_by_vector(query)
        assert first.id is not None
        store.store[first.id]["vector"][:] = [-value for value in query]
        changed = store.similarity_search_with_score_by_vector(query)
    assert changed == store.similarity_search_with_score_by_vector(query)
    assert first.id not in [document.id for document, _ in changed]


@pytest.mark.filterwarnings("ignore:.* found in input arrays:RuntimeWarning")
@pytest.mark.parametrize(
    "odd",
    [
        [float("nan")] * DIMENSION,
        [float("inf"), *[1.0] * (DIMENSION - 1)],
        [1.0] * (DIMENSION + 1),
        ["1"] * DIMENSION,
        None,
    ],
    ids=["nan", "infinity", "another dimension", "texts", "none"],
)
def test_a_store_that_cannot_be_copied_answers_for_itself(
    store: InMemoryVectorStore, accelerator: Accelerator, odd: Any
) -> None:
    put(store, "odd", odd)
    plain = outcome(store, queries(1)[0], 4)
    with activate(accelerator):
        assert outcome(store, queries(1)[0], 4) == plain
        assert outcome(store, queries(1)[0], 4) == plain


def outcome(store: InMemoryVectorStore, query: Any, k: Any) -> Any:
    try:
        return store.similarity_search_with_score_by_vector(query, k)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int32])
@pytest.mark.parametrize("asked", [list, np.float32])
def test_vectors_of_any_type_are_compared_as_the_store_does(
    accelerator: Accelerator, dtype: Any, asked: Any
) -> None:
    rows = 10 * np.random.default_rng(7).normal(size=(COUNT, DIMENSION))
    store = store_of([])
    for number, row in enumerate(rows.astype(dtype)):
        put(store, str(number), row)
    for query in queries():
        given: Any = query if asked is list else np.array(query, asked)
        plain = store.similarity_search_with_score_by_vector(given, 20)
        with activate(accelerator):
            found = store.similarity_search_with_score_by_vector(given, 20)
        assert [document for document, _ in found] == [document for document, _ in plain]
        assert np.allclose([score for _, score in found], [s for _, s in plain], atol=1e-6)


@pytest.mark.parametrize("query", [[0.0] * DIMENSION, [1.0], [], ["x"] * DIMENSION, None])
def test_a_question_that_is_none_is_the_stores_to_refuse(
    store: InMemoryVectorStore, accelerator: Accelerator, query: Any
) -> None:
    plain = outcome(store, query, 4)
    with activate(accelerator):
        assert outcome(store, query, 4) == plain


@pytest.mark.parametrize("k", [0, -1, -COUNT, True, np.int64(3), 2.5, None])
def test_an_odd_count_means_what_it_means_to_the_store(
    store: InMemoryVectorStore, accelerator: Accelerator, k: Any
) -> None:
    plain = outcome(store, queries(1)[0], k)
    with activate(accelerator):
        assert outcome(store, queries(1)[0], k) == plain


async def test_a_filter_is_asked_as_often_as_the_store_asks_it(
    store: InMemoryVectorStore, accelerator: Accelerator
) -> None:
    asked = list[str | None]()

    def is_even(document: Document) -> bool:
        asked.append(document.id)
        return int(document.id or 0) % 2 == 0

    (query,) = queries(1)
    plain = store.similarity_search_with_score_by_vector(query, filter=is_even)
    before = list(asked)
    asked.clear()
    with activate(accelerator):
        assert store.similarity_search_with_score_by_vector(query, filter=is_even) == plain
        assert asked == before
        found = await store.asimilarity_search_by_vector(query, filter=is_even)
    assert found == [document for document, _ in plain]


def test_a_store_that_changes_its_dimension_is_copied_anew(
    store: InMemoryVectorStore, accelerator: Accelerator
) -> None:
    with activate(accelerator):
        store.similarity_search_by_vector(queries(1)[0])
        store.store.clear()
        for number in range(3):
            put(store, str(number), [float(number), 1.0])
        (found,) = store.similarity_search_by_vector([2.0, 1.0], 1)
        assert found.id == "2"
        with pytest.raises(ValueError, match="columns"):
            store.similarity_search_by_vector(queries(1)[0])
        gc.collect()
        store.similarity_search_by_vector([2.0, 1.0], 1)
    assert soon_idle(accelerator)
    names = [name for name in accelerator._bound if name.startswith("retrieval#")]
    assert len(names) <= 1


def test_only_stores_that_search_as_langchains_are_recognised(accelerator: Accelerator) -> None:
    class Renamed(InMemoryVectorStore):
        def add_texts(self, texts: Any, *args: Any, **kwargs: Any) -> list[str]:
            return super().add_texts([text.upper() for text in texts], *args, **kwargs)

    class Other(InMemoryVectorStore):
        def similarity_search_with_score_by_vector(self, *args: Any, **kwargs: Any) -> Any:
            return super().similarity_search_with_score_by_vector(*args, **kwargs)[::-1]

    assert is_recognised(Renamed)
    assert is_recognised(type(accelerate(Renamed(DeterministicFakeEmbedding(size=2)))))
    assert not is_recognised(Other)
    with activate(accelerator):
        assert is_recognised(InMemoryVectorStore)
        assert not is_recognised(Other)
