"""The vector store passes LangChain's own suite and equals a plain store."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import (
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from lc_fakes import AsyncEmbeddings, FakeEmbeddings, vector_of

from langchain_rag_accel import (
    RagAccelRetriever,
    RagAccelVectorStore,
    accelerate,
)
from rag_accel import Accelerator, ConfigError

TEXTS = [f"text number {number}" for number in range(40)]
METADATA = [{"even": number % 2 == 0, "number": number} for number in range(40)]
IDS = [str(number) for number in range(40)]


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, accelerator: Accelerator) -> VectorStore:
        return RagAccelVectorStore(self.get_embeddings(), accelerator=accelerator)


class TestStandardAccelerated(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, accelerator: Accelerator) -> VectorStore:
        return accelerate(InMemoryVectorStore(self.get_embeddings()), accelerator=accelerator)


@pytest.fixture
def store(accelerator: Accelerator) -> RagAccelVectorStore:
    return RagAccelVectorStore.from_texts(
        TEXTS, FakeEmbeddings(), METADATA, ids=IDS, accelerator=accelerator
    )


@pytest.fixture
def plain() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(TEXTS, FakeEmbeddings(), METADATA, ids=IDS)


async def test_searches_equal_those_of_a_plain_store(
    store: RagAccelVectorStore, plain: InMemoryVectorStore
) -> None:
    vector = vector_of("x")
    assert store.similarity_search("x", k=7) == plain.similarity_search("x", k=7)
    assert store.similarity_search_by_vector(vector) == plain.similarity_search_by_vector(vector)
    assert await store.asimilarity_search("x", k=7) == plain.similarity_search("x", k=7)
    assert await store.asimilarity_search_by_vector(vector) == plain.similarity_search("x")
    ours, theirs = (one.similarity_search_with_score("x", k=7) for one in (store, plain))
    assert [document for document, _ in ours] == [document for document, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-6)
    assert await store.asimilarity_search_with_score("x", k=7) == ours


async def test_diverse_searches_equal_those_of_a_plain_store(
    store: RagAccelVectorStore, plain: InMemoryVectorStore
) -> None:
    for options in ({"k": 3}, {"k": 5, "fetch_k": 12, "lambda_mult": 0.1}, {"k": 0}):
        expected = plain.max_marginal_relevance_search("x", **options)
        assert store.max_marginal_relevance_search("x", **options) == expected
        assert await store.amax_marginal_relevance_search("x", **options) == expected
        vector = vector_of("x")
        assert store.max_marginal_relevance_search_by_vector(vector, **options) == expected
        assert await store.amax_marginal_relevance_search_by_vector(vector, **options) == expected


async def test_a_filter_keeps_documents_whose_fields_are_equal(store: RagAccelVectorStore) -> None:
    for found in (
        store.similarity_search("x", k=50, filter={"even": True}),
        await store.asimilarity_search("x", k=50, filter={"even": True}),
        store.max_marginal_relevance_search("x", k=50, fetch_k=50, filter={"even": True}),
    ):
        assert len(found) == 20
        assert all(document.metadata["even"] for document in found)
    (one,) = store.similarity_search("x", filter={"even": True, "number": 4})
    assert one.id == "4"
    assert store.similarity_search("x", filter={"missing": 1}) == []


async def test_a_bad_filter_is_refused_by_name(store: RagAccelVectorStore) -> None:
    with pytest.raises(ConfigError, match="metadata filter"):
        store.similarity_search("x", filter="even")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metadata filter"):
        await store.asimilarity_search("x", filter="even")


def test_an_empty_store_finds_nothing(accelerator: Accelerator) -> None:
    empty = RagAccelVectorStore(FakeEmbeddings(), accelerator=accelerator)
    assert empty.similarity_search("x") == []
    assert empty.max_marginal_relevance_search("x") == []
    assert empty.get_by_ids(["1"]) == []
    assert empty.add_documents([]) == []
    assert empty.index is None
    empty.delete(["1"])
    empty.delete()


async def test_ids_of_another_number_than_texts_are_refused_alike(
    store: RagAccelVectorStore, plain: InMemoryVectorStore
) -> None:
    messages = []
    for one in (store, plain):
        with pytest.raises(ValueError, match="same length") as caught:
            one.add_documents([Document(page_content="x")], ids=["1", "2"])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    with pytest.raises(ValueError, match="same length"):
        await store.aadd_documents([Document(page_content="x")], ids=["1", "2"])


def test_found_documents_are_the_callers_own(store: RagAccelVectorStore) -> None:
    (found,) = store.get_by_ids(["3"])
    found.metadata["number"] = "changed"
    assert store.get_by_ids(["3"])[0].metadata["number"] == 3
    assert [document.id for document in store.get_by_ids(["5", "none", "3"])] == ["5", "3"]


async def test_a_store_can_be_made_from_texts_or_documents(accelerator: Accelerator) -> None:
    documents = [Document(id=id, page_content=text) for id, text in zip(IDS, TEXTS, strict=True)]
    made = [
        RagAccelVectorStore.from_documents(documents, FakeEmbeddings(), accelerator=accelerator),
        await RagAccelVectorStore.afrom_documents(
            documents, AsyncEmbeddings(), accelerator=accelerator
        ),
        await RagAccelVectorStore.afrom_texts(
            TEXTS, AsyncEmbeddings(), ids=IDS, accelerator=accelerator
        ),
    ]
    found = [[document.id for document in one.similarity_search("x")] for one in made]
    assert found[0] == found[1] == found[2]


def test_a_saved_store_answers_as_before(
    store: RagAccelVectorStore, tmp_path: Path, accelerator: Accelerator
) -> None:
    path = tmp_path / "store.index"
    store.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = RagAccelVectorStore.load(path, FakeEmbeddings(), accelerator=accelerator)
    assert loaded.similarity_search_with_score("x") == store.similarity_search_with_score("x")
    loaded.add_texts(["more"], ids=["more"])
    assert loaded.get_by_ids(["more"])[0].page_content == "more"


async def test_sync_only_embeddings_do_not_block_the_loop(accelerator: Accelerator) -> None:
    import threading

    embeddings = FakeEmbeddings()
    store = RagAccelVectorStore(embeddings, accelerator=accelerator)
    await store.aadd_texts(TEXTS)
    await store.asimilarity_search("x")
    assert {call.thread for call in embeddings.journal.calls} & {threading.get_ident()} == set()


def test_an_error_of_the_embeddings_is_the_users_own(accelerator: Accelerator) -> None:
    error = ValueError("the user's own")
    store = RagAccelVectorStore(FakeEmbeddings(error), accelerator=accelerator)
    with pytest.raises(ValueError, match="user's own") as caught:
        store.add_texts(["x"])
    assert caught.value is error
    error.__traceback__ = None


# The retriever ----------------------------------------------------------------------------------


class TestStandardRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def made(self, store: RagAccelVectorStore) -> None:
        self.params = {"store": store}

    @property
    def retriever_constructor(self) -> type[RagAccelRetriever]:
        return RagAccelRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.params

    @property
    def retriever_query_example(self) -> str:
        return "an example"


async def test_a_call_may_choose_number_and_filter(store: RagAccelVectorStore) -> None:
    retriever = RagAccelRetriever(store=store, k=2, filter={"even": True})
    assert len(retriever.invoke("x")) == 2
    assert len(await retriever.ainvoke("x", k=5)) == 5
    assert not any(d.metadata["even"] for d in retriever.invoke("x", filter={"even": False}))
