"""Chroma's stores of both frameworks, on a server and in this process: results as alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from at_once import (
    CALLERS,
    COUNT,
    PROPERTY,
    VALUES,
    VECTORS,
    Numbered,
    at_once,
    count,
    were_shared,
    within,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, VectorStoreQuery

import llama_index_rag_accel
from bench.stores.servers import chroma_server
from rag_accel import Accelerator
from rag_accel_adapters.libraries.vector_stores import CHROMA

chromadb: Any = pytest.importorskip("chromadb")
langchain_chroma: Any = pytest.importorskip("langchain_chroma")
llama_index_chroma: Any = pytest.importorskip("llama_index.vector_stores.chroma")

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a server, give a client of it, and stop it at the end."""
    with chroma_server(tmp_path_factory.mktemp("chroma")) as client:
        yield client


@pytest.fixture(scope="module", params=["server", "embedded"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "server":
        return request.getfixturevalue("server")
    folder = tmp_path_factory.mktemp("embedded")
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    return chromadb.PersistentClient(str(folder), settings=settings)


@pytest.fixture(scope="module")
def collection(client: Any) -> Any:
    made = client.get_or_create_collection("texts", embedding_function=None)
    numbers = range(COUNT)
    made.add(
        ids=[str(number) for number in numbers],
        embeddings=VECTORS,
        documents=[f"{number} text" for number in numbers],
        metadatas=[{"third": number % 3, "even": number % 2 == 0} for number in numbers],
    )
    return made


@pytest.fixture
def store(client: Any, collection: Any) -> Any:
    return langchain_chroma.Chroma(
        "texts", Numbered(), client=client, create_collection_if_not_exists=False
    )


SEARCHES: dict[str, Callable[[Any, int], Any]] = {
    "by vector": lambda store, n: store.similarity_search_by_vector(VECTORS[n], 3),
    "with score": lambda store, n: store.similarity_search_with_score(f"{n}", 2 + n % 2),
    "filters": lambda store, n: store.similarity_search_with_score(f"{n}", filter={"third": n % 3}),
    "long filter": lambda store, n: store.similarity_search(
        f"{n}", filter={"third": {"$in": list(range(-1998, 2))}}
    ),
    "words": lambda store, n: store.similarity_search(f"{n}", where_document={"$contains": "7"}),
    "diverse": lambda store, n: store.max_marginal_relevance_search(f"{n}", 3, fetch_k=9),
    "wrong length": lambda store, n: store.similarity_search_by_vector(VECTORS[n][: 16 - n % 2]),
    "wrong filter": lambda store, n: store.similarity_search(
        f"{n}", filter={"$no": [1]} if n == 5 else None
    ),
    "retriever": lambda store, n: store.as_retriever().invoke(f"{n}"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_of_many_callers_give_what_each_gives_alone(
    store: Any, accelerator: Accelerator, name: str
) -> None:
    def search(number: int) -> Any:
        return SEARCHES[name](store, number)

    plain = [at_once(search, [number])[0] for number in range(CALLERS)]
    assert at_once(within(accelerator, search), range(CALLERS)) == plain
    assert were_shared(accelerator)
    assert name.startswith("wrong") or count(accelerator, "failed_store_calls") == 0


def test_each_part_of_a_shared_answer_is_as_alone(collection: Any) -> None:
    include = ["embeddings", "metadatas", "documents", "distances", "uris"]
    given = {"n_results": 3, "include": include}
    found = CHROMA.search(collection, {}, [(vector, given) for vector in VECTORS[:4]])
    for vector, one in zip(VECTORS, found, strict=False):
        alone = collection.query(query_embeddings=[vector], **given)
        assert np.array_equal(one.pop("embeddings"), alone.pop("embeddings"))
        assert one == alone


def test_a_search_that_begins_after_a_write_sees_it(store: Any, accelerator: Accelerator) -> None:
    def write_and_search(number: int) -> Any:
        text = f"{number} written"
        (id,) = store.add_texts([text], ids=[f"written {number}"])
        found = store.similarity_search(f"{number}", 2)
        return text in [document.page_content for document in found], store.delete([id])

    found = at_once(within(accelerator, write_and_search), range(CALLERS))
    assert found == [(True, None)] * CALLERS


def test_stores_of_llama_index_share_calls(collection: Any, accelerator: Accelerator) -> None:
    store = llama_index_chroma.ChromaVectorStore(chroma_collection=collection)

    def search(number: int) -> Any:
        filters = MetadataFilters(filters=[MetadataFilter(key="third", value=number % 2)])
        query = VectorStoreQuery(VECTORS[number], 3, filters=filters)
        found = store.query(query)
        return found.ids, found.similarities, [node.text for node in found.nodes or ()]

    plain = [at_once(search, [number])[0] for number in range(CALLERS)]
    accelerated = within(accelerator, search, llama_index_rag_accel.activate)
    assert at_once(accelerated, range(CALLERS)) == plain
    assert were_shared(accelerator)


def test_a_replaced_method_or_a_hook_asks_alone_and_is_named(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = server.get_or_create_collection("texts", embedding_function=None)
    assert CHROMA.why_not(collection) is None
    session = collection._client._session
    session.event_hooks = {"request": [lambda request: None]}
    assert "a hook in event_hooks" in str(CHROMA.why_not(collection))
    session.event_hooks = {}
    monkeypatch.setattr(collection._client, "_query", lambda **query: None)
    assert "FastAPI._query is replaced on it" in str(CHROMA.why_not(collection))


def test_searches_by_texts_or_by_several_vectors_or_with_objects_are_made_alone(
    collection: Any,
) -> None:
    one = {"query_embeddings": [VECTORS[0]]}
    assert CHROMA.read(collection, one) is not None
    for other in (
        {"query_texts": ["a"]},
        {"query_embeddings": VECTORS[:2]},
        {**one, "where": {"a": object()}},
        {"query_embeddings": [np.array(VECTORS[0], dtype=object)]},
    ):
        assert CHROMA.read(collection, other) is None


FILTERS = st.dictionaries(st.sampled_from("ab"), VALUES | st.lists(VALUES, max_size=2))


@given(FILTERS, FILTERS)
@settings(PROPERTY, max_examples=300)
def test_searches_share_a_call_only_if_their_filters_are_sent_as_the_same_text(
    collection: Any, one: Any, other: Any
) -> None:
    reads = [
        CHROMA.read(collection, {"query_embeddings": [VECTORS[0]], "where": where})
        for where in (one, other)
    ]
    keys = [read.key for read in reads if read]
    assert len(keys) == 2
    assert (keys[0] == keys[1]) == (json.dumps(one) == json.dumps(other))


def test_a_filter_that_its_owner_changes_while_it_waits_reaches_no_other(collection: Any) -> None:
    where = {"third": 1}
    given = {"query_embeddings": [VECTORS[0]], "where": where}
    reads = [CHROMA.read(collection, given) for _ in range(2)]
    where["third"] = 2
    found = CHROMA.search(collection, given, [read.query for read in reads if read])
    where["third"] = 1
    assert found == [collection.query(**given)] * 2


def test_vectors_that_chroma_converts_in_other_ways_share_no_call(collection: Any) -> None:
    vectors = (VECTORS[0], np.array(VECTORS[0]), np.array(VECTORS[0], dtype=np.float32))
    reads = [CHROMA.read(collection, {"query_embeddings": [vector]}) for vector in vectors]
    assert len({read.key for read in reads if read}) == len(vectors)


@pytest.mark.parametrize("part", ["ids", "documents", "metadatas", "distances"])
def test_searches_whose_shared_answer_lacks_a_part_are_each_made_once_alone(
    server: Any, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    store, numbers = langchain_chroma.Chroma("parts", Numbered(), client=server), range(CALLERS)
    store.add_texts([f"{n} text" for n in numbers], ids=[f"{n}" for n in numbers])
    orjson, answers = chromadb.api.fastapi.orjson, list[int]()

    def loads(text: str) -> Any:
        answer = orjson.loads(text)
        if part in answer:
            answers.append(len(answer["ids"]))
            answer[part] = answer[part][: max(1, answers[-1] - 1)]
        return answer

    def search(number: int) -> Any:
        return store.similarity_search_with_score(f"{number}", 3)

    plain = [search(number) for number in range(CALLERS)]
    partial = SimpleNamespace(**{**vars(orjson), "loads": loads})
    monkeypatch.setattr(chromadb.api.fastapi, "orjson", partial)
    assert at_once(within(accelerator, search), range(CALLERS)) == plain
    assert count(accelerator, "failed_store_calls") > 0
    assert answers.count(1) == CALLERS
