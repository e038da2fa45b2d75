"""A store that is replaced, or never fitted, answers as it does by itself, or with a named error.

Nothing of a store is kept between requests, so no answer mixes documents of two.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from accel_harness import PATIENCE_S, Gate
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

pytest.importorskip("langchain_community")

from langchain_community.vectorstores import FAISS

from langchain_rag_accel import RagAccelVectorStore, accelerate
from rag_accel import Accelerator, ConfigError
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.testing.compute import vector_of


class Embedder(Embeddings):
    """Embed by digest; wait at a gate, if there is one, before a query's vector is given."""

    def __init__(self, size: int = 8, gate: Gate | None = None) -> None:
        self.size, self.gate = size, gate

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [np.resize(vector_of(text), self.size).tolist() for text in texts]

    def embed_query(self, text: str) -> list[float]:
        if self.gate is not None:
            self.gate(None)
        return self.embed_documents([text])[0]


def faiss_store(name: str, embedder: Embedder) -> FAISS:
    """Return a store of six documents that say whose they are."""
    documents = [Document(f"{name} {n}", metadata={"of": name}) for n in range(6)]
    return FAISS.from_documents(documents, embedder)


def replace(store: FAISS, by: FAISS) -> None:
    """Put another store's index, and what its positions stand for, underneath."""
    store.index, store.docstore = by.index, by.docstore
    store.index_to_docstore_id = by.index_to_docstore_id


def owners(documents: list[Document]) -> set[str]:
    return {document.metadata["of"] for document in documents}


@pytest.fixture(params=[True, False], ids=["strict", "fail open"])
def accelerator(request: pytest.FixtureRequest) -> Iterator[Accelerator]:
    """Give an accelerator; afterwards nothing ran without it because of an error of ours."""
    with Accelerator(strict=request.param) as made:
        yield made
        assert made.bypassed == {}


def test_a_replaced_index_answers_the_next_request(accelerator: Accelerator) -> None:
    store, other = faiss_store("old", Embedder()), faiss_store("new", Embedder())
    fast = accelerate(store.as_retriever(search_kwargs={"k": 6}), accelerator=accelerator)
    assert owners(fast.invoke("x")) == {"old"}
    replace(store, other)
    assert fast.invoke("x") == other.similarity_search("x", k=6)


def test_an_index_replaced_while_a_request_waits_answers_it_whole(
    accelerator: Accelerator,
) -> None:
    found: list[list[Document]] = []
    with Gate() as gate:
        store, other = faiss_store("old", Embedder(gate=gate)), faiss_store("new", Embedder())
        fast = accelerate(store.as_retriever(search_kwargs={"k": 6}), accelerator=accelerator)
        waiting = threading.Thread(target=lambda: found.append(fast.invoke("x")))
        waiting.start()
        gate.wait_until_entered()
        replace(store, other)
        gate.open()
        waiting.join(PATIENCE_S)
    assert found == [other.similarity_search("x", k=6)]


def test_an_index_of_another_dimension_underneath_fails_as_the_plain_store_does(
    accelerator: Accelerator,
) -> None:
    broken, sound = faiss_store("broken", Embedder()), faiss_store("sound", Embedder())
    fast = accelerate(broken.as_retriever(), accelerator=accelerator)
    beside = accelerate(sound.as_retriever(), accelerator=accelerator)
    replace(broken, faiss_store("other", Embedder(5)))
    with pytest.raises(AssertionError):
        broken.similarity_search("x")
    with pytest.raises(AssertionError):
        fast.invoke("x")
    assert beside.invoke("x") == sound.similarity_search("x")


def test_a_filter_on_an_unknown_field_finds_nothing_as_in_a_plain_store(
    accelerator: Accelerator,
) -> None:
    documents = [Document("text", metadata={"of": "me"})]
    plain = FAISS.from_documents(documents, Embedder())
    ours = RagAccelVectorStore.from_documents(documents, Embedder(), accelerator=accelerator)
    searching = plain.as_retriever(search_kwargs={"filter": {"fo": 1}})
    fast = accelerate(searching, accelerator=accelerator)
    assert plain.similarity_search("x", filter={"fo": 1}) == []
    assert fast.invoke("x") == []
    assert ours.similarity_search("x", filter={"fo": 1}) == []
    assert ours.as_retriever(search_kwargs={"filter": {"fo": 1}}).invoke("x") == []


def test_embeddings_of_another_dimension_than_the_index_are_refused_by_name(
    accelerator: Accelerator,
) -> None:
    sound = RagAccelVectorStore(Embedder(), accelerator=accelerator)
    sound.add_texts(["a", "b"])
    index = DocumentIndex(IndexSpec(5))
    wrong = RagAccelVectorStore(Embedder(), index, accelerator=accelerator)
    for ask in (lambda: wrong.similarity_search("x"), lambda: wrong.add_texts(["c"])):
        with pytest.raises(ConfigError, match=r"wrong shape.*next: embed with the model") as caught:
            ask()
        assert "8)" in str(caught.value) or "(8,)" in str(caught.value)
    assert len(index) == 0
    assert len(sound.similarity_search("x", k=9)) == 2


def test_another_index_put_under_a_store_of_ours_answers_the_next_request(
    accelerator: Accelerator,
) -> None:
    store = RagAccelVectorStore(Embedder(), accelerator=accelerator)
    other = RagAccelVectorStore(Embedder(), accelerator=accelerator)
    store.add_texts([f"old {n}" for n in range(6)])
    other.add_texts([f"new {n}" for n in range(6)])
    fast = accelerate(store.as_retriever(search_kwargs={"k": 9}), accelerator=accelerator)
    assert {one.page_content.split()[0] for one in fast.invoke("x")} == {"old"}
    fast.vectorstore = other
    assert fast.invoke("x") == other.similarity_search("x", k=9)
