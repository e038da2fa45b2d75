"""What a store does with ids, vectors and arguments that are not what they should be."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from lc_fakes import FakeEmbeddings

from langchain_rag_accel import RagAccelRetriever, RagAccelVectorStore
from rag_accel import Accelerator, ConfigError, EngineOutputError

TEXTS = ["a", "b", "c"]


@pytest.fixture
def store(accelerator: Accelerator) -> RagAccelVectorStore:
    """Give a store of three documents whose ids are their texts."""
    return RagAccelVectorStore.from_texts(
        TEXTS, FakeEmbeddings(), [{"a": 1}, {"a": [1]}, {}], ids=TEXTS, accelerator=accelerator
    )


def _count(store: RagAccelVectorStore) -> int:
    return len(store.similarity_search("x", k=99))


@pytest.mark.parametrize("ids", ["ab", b"ab", [b"a"], [1], ["a", None], [["a"]]])
async def test_ids_that_are_no_ids_are_refused_and_nothing_is_deleted(
    store: RagAccelVectorStore, ids: Any, accelerator: Accelerator
) -> None:
    empty = RagAccelVectorStore(FakeEmbeddings(), accelerator=accelerator)
    for one in (store, empty):
        for call in (one.delete, one.get_by_ids):
            with pytest.raises(ConfigError, match="bad id"):
                call(ids)
        for acall in (one.adelete, one.aget_by_ids):
            with pytest.raises(ConfigError, match="bad id"):
                await acall(ids)
    assert _count(store) == 3


@pytest.mark.parametrize("ids", ["xy", b"xy", [b"x", b"y"]])
async def test_documents_are_not_added_under_ids_that_are_no_ids(
    store: RagAccelVectorStore, ids: Any, accelerator: Accelerator
) -> None:
    documents = [Document(page_content="x"), Document(page_content="y")]
    with pytest.raises(ConfigError, match="bad"):
        store.add_documents(documents, ids=ids)
    with pytest.raises(ConfigError, match="bad"):
        await store.aadd_documents(documents, ids=ids)
    if not isinstance(ids, list):  # LangChain itself refuses to make documents of those
        with pytest.raises((ConfigError, ValueError)):
            store.add_texts(["x", "y"], ids=ids)
        with pytest.raises((ConfigError, ValueError)):
            RagAccelVectorStore.from_texts(["x", "y"], FakeEmbeddings(), ids=ids)
    assert _count(store) == 3


def test_a_number_of_numpy_matches_what_the_number_matches(store: RagAccelVectorStore) -> None:
    for value in (1, np.int64(1), np.float32(1), True):
        found = store.similarity_search("x", k=9, filter={"a": value})
        assert [document.id for document in found] == ["a"]
    for value in ([1], (1,), np.asarray([1])):
        found = store.similarity_search("x", k=9, filter={"a": value})
        assert [document.id for document in found] == (["b"] if isinstance(value, list) else [])


SEARCHES: dict[str, Callable[..., Any]] = {
    "similarity_search": lambda store, **rest: store.similarity_search("x", **rest),
    "with_score": lambda store, **rest: store.similarity_search_with_score("x", **rest),
    "by_vector": lambda store, **rest: store.similarity_search_by_vector([1, 2, 3, 4], **rest),
    "diverse": lambda store, **rest: store.max_marginal_relevance_search("x", **rest),
    "retriever": lambda store, **rest: store.as_retriever(search_kwargs=rest).invoke("x"),
    "our retriever": lambda store, **rest: RagAccelRetriever(store=store).invoke("x", **rest),
}
ASEARCHES: dict[str, Callable[..., Any]] = {
    "similarity_search": lambda store, **rest: store.asimilarity_search("x", **rest),
    "diverse": lambda store, **rest: store.amax_marginal_relevance_search("x", **rest),
    "retriever": lambda store, **rest: store.as_retriever(search_kwargs=rest).ainvoke("x"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_an_unknown_argument_of_a_search_is_refused_by_name(
    store: RagAccelVectorStore, accelerator: Accelerator, name: str
) -> None:
    empty = RagAccelVectorStore(FakeEmbeddings(), accelerator=accelerator)
    for one in (store, empty):
        with pytest.raises(ConfigError, match=r"fiter.*valid: .*filter"):
            SEARCHES[name](one, fiter={"a": 1})


@pytest.mark.parametrize("name", ASEARCHES)
async def test_an_unknown_argument_of_an_async_search_is_refused_by_name(
    store: RagAccelVectorStore, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"fiter.*valid: .*filter"):
        await ASEARCHES[name](store, fiter={"a": 1})


def test_a_threshold_where_it_is_not_looked_at_is_refused_and_says_where_it_is(
    store: RagAccelVectorStore,
) -> None:
    with pytest.raises(ConfigError, match="similarity_score_threshold"):
        store.as_retriever(search_kwargs={"score_threshold": 0.9}).invoke("x")
    threshold = {"score_threshold": 0.0, "k": 2}
    found = store.as_retriever(search_type="similarity_score_threshold", search_kwargs=threshold)
    assert len(found.invoke("x")) == 2


class _Given(Embeddings):
    """Embed a text as the vector it was given."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vectors[text]


def _direction(vector: list[float]) -> list[float]:
    """Return the vector at length one, by whole numbers of any size."""
    exact = [Fraction(number) for number in vector]
    scale = Fraction(10**40) / max(map(abs, exact))
    numbers = [round(number * scale) for number in exact]
    length = isqrt(sum(number * number for number in numbers))
    return [float(Fraction(number, length)) for number in numbers]


@pytest.mark.parametrize("exponent", [-320, -308, -200, -160, -5, 0, 5, 160, 200, 307])
def test_vectors_of_any_size_keep_their_direction(accelerator: Accelerator, exponent: int) -> None:
    rng = random.Random(exponent)
    vectors = {
        str(row): [rng.uniform(-1, 1) * 10.0**exponent for _ in range(8)] for row in range(20)
    }
    embedding = _Given(vectors)
    store = RagAccelVectorStore.from_texts(
        list(vectors), embedding, ids=list(vectors), accelerator=accelerator
    )
    assert store.index is not None
    held = store.index.vectors(vectors)
    for id, vector in vectors.items():
        assert held[id].tolist() == pytest.approx(_direction(vector), rel=1e-6)
    for id in vectors:
        (nearest, score), *_ = store.similarity_search_with_score(id, k=3)
        assert (nearest.id, score) == (id, pytest.approx(1.0, abs=1e-6))
    diverse = store.max_marginal_relevance_search("3", k=4, fetch_k=10)
    assert diverse[0].id == "3"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_vectors_that_are_no_numbers_are_refused_by_what_they_are(
    accelerator: Accelerator, bad: float
) -> None:
    vectors = {"good": [1.0, 2.0], "bad": [0.0, bad]}
    store = RagAccelVectorStore.from_texts(["good"], _Given(vectors), accelerator=accelerator)
    with pytest.raises(EngineOutputError, match=f"found {bad} at position 1"):
        store.add_texts(["bad"])
    assert _count_of(store, "good") == 1


def _count_of(store: RagAccelVectorStore, query: str) -> int:
    return len(store.similarity_search(query, k=99))


def test_a_first_addition_that_fails_leaves_a_store_that_takes_any(
    accelerator: Accelerator,
) -> None:
    vectors = {"bad": [float("nan")] * 3, "good": [1.0, 2.0]}
    store = RagAccelVectorStore(_Given(vectors), accelerator=accelerator)
    with pytest.raises(EngineOutputError):
        store.add_texts(["bad"])
    assert store.index is None
    store.add_texts(["good"])
    assert _count_of(store, "good") == 1


def test_a_store_finds_what_a_plain_one_finds_after_a_call_with_repeated_ids(
    store: RagAccelVectorStore,
) -> None:
    plain = InMemoryVectorStore.from_texts(TEXTS, FakeEmbeddings(), ids=TEXTS)
    for one in (store, plain):
        assert one.add_texts(["1", "2", "3"], ids=["a", "new", "a"]) == ["a", "new", "a"]
    found = [
        [(document.id, document.page_content) for document in one.similarity_search("x", k=9)]
        for one in (store, plain)
    ]
    assert found[0] == found[1]
