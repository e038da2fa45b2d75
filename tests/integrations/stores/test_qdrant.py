"""Qdrant's stores of both frameworks: the client for servers, over HTTP, and what answers alone.

No server of Qdrant's can be installed by pip. Its local mode answers here behind HTTP, by Qdrant's
own classes of requests and answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from at_once import (
    CALLERS,
    COUNT,
    DIMENSION,
    PROPERTY,
    VALUES,
    VECTORS,
    Numbered,
    at_once,
    count,
    outcome,
    were_shared,
    within,
)
from hypothesis import given
from llama_index.core.vector_stores import VectorStoreQuery

import llama_index_rag_accel
from rag_accel import Accelerator
from rag_accel_adapters.libraries.vector_stores import QDRANT

qdrant_client: Any = pytest.importorskip("qdrant_client")
langchain_qdrant: Any = pytest.importorskip("langchain_qdrant")
models: Any = qdrant_client.models

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:.*insecure connection")]
NAME = "texts"


class Server(ThreadingHTTPServer):
    """Qdrant's local mode behind HTTP.

    Attributes:
        batches: the numbers of searches in calls for several.
        alone: how many searches came alone.
        fault: changes the results of a batch, or raises.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock, self.batches, self.alone = threading.Lock(), list[int](), 0
        self.fault: Callable[[list[Any]], list[Any]] = list
        self.local = qdrant_client.QdrantClient(":memory:")
        size = models.VectorParams(size=DIMENSION, distance=models.Distance.COSINE)
        self.local.create_collection(NAME, vectors_config=size)
        points = [
            models.PointStruct(
                id=number,
                vector=VECTORS[number],
                payload={
                    "page_content": f"{number} text",
                    "text": f"{number} text",
                    "metadata": {"third": number % 3},
                },
            )
            for number in range(COUNT)
        ]
        self.local.upsert(NAME, points)

    def answer(self, path: str, body: Any) -> Any:
        """Return the result of a request."""
        with self.lock:
            if path.endswith("/exists"):
                return {"exists": True}
            if body is None:
                return self.local.get_collection(NAME).model_dump(mode="json")
            requests = [models.QueryRequest(**one) for one in body.get("searches", [body])]
            found = self.local.query_batch_points(NAME, requests)
            results = [one.model_dump(mode="json") for one in found]
            if "searches" not in body:
                self.alone += 1
                return results[0]
        self.batches.append(len(requests))
        return self.fault(results)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        server: Any = self.server
        try:
            status, answer = 200, {"result": server.answer(self.path.split("?")[0], body)}
        except Exception as error:
            status, answer = 400, {"status": {"error": str(error)}}
        sent = json.dumps({"status": "ok", "time": 0.0, **answer}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)
        made.local.close()


def client_of(server: Server, **settings: Any) -> Any:
    url = f"http://127.0.0.1:{server.server_port}"
    return qdrant_client.QdrantClient(url=url, check_compatibility=False, **settings)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with closing(client_of(server, api_key="key", headers={"X-Team": "a"})) as made:
        yield made


def third(number: int) -> Any:
    match = models.MatchValue(value=number % 3)
    return models.Filter(must=[models.FieldCondition(key="metadata.third", match=match)])


SEARCHES: dict[str, Callable[[Any, int], Any]] = {
    "by vector": lambda store, n: store.similarity_search_by_vector(VECTORS[n], 3),
    "filters": lambda store, n: store.similarity_search_with_score(
        f"{n}", 1 + n % 4, filter=third(n)
    ),
    "threshold": lambda store, n: store.similarity_search(f"{n}", score_threshold=0.4),
    "diverse": lambda store, n: store.max_marginal_relevance_search(f"{n}", 3, fetch_k=9),
    "wrong length": lambda store, n: store.similarity_search_by_vector(VECTORS[n][: 16 - n % 2]),
    "retriever": lambda store, n: store.as_retriever().invoke(f"{n}"),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_of_many_callers_give_what_each_gives_alone(
    client: Any, server: Server, accelerator: Accelerator, name: str
) -> None:
    store = langchain_qdrant.QdrantVectorStore(
        client, NAME, Numbered(), validate_collection_config=False
    )

    def search(number: int) -> Any:
        return SEARCHES[name](store, number)

    plain = [at_once(search, [number])[0] for number in range(CALLERS)]
    server.batches.clear()
    assert at_once(within(accelerator, search), range(CALLERS)) == plain
    assert were_shared(accelerator)
    searches = count(accelerator, "searches_in_store_calls")
    assert name == "wrong length" or sum(server.batches) == searches


def test_stores_of_llama_index_share_calls(client: Any, accelerator: Accelerator) -> None:
    found: Any = pytest.importorskip("llama_index.vector_stores.qdrant")
    store = found.QdrantVectorStore(NAME, client=client)

    def search(number: int) -> Any:
        found = store.query(VectorStoreQuery(VECTORS[number], 3))
        return found.ids, found.similarities, [node.text for node in found.nodes or ()]

    plain = [at_once(search, [number])[0] for number in range(CALLERS)]
    accelerated = within(accelerator, search, llama_index_rag_accel.activate)
    assert at_once(accelerated, range(CALLERS)) == plain
    assert were_shared(accelerator)


def test_a_search_with_headers_of_its_caller_is_made_alone(client: Any) -> None:
    given = {"collection_name": NAME, "query": VECTORS[0], "limit": 3}
    assert QDRANT.read(client, given) is not None
    with qdrant_client.context_headers.headers({"X-User": "me"}):
        assert QDRANT.read(client, given) is None


@pytest.mark.parametrize("changed", [{"query": "an id"}, {"query_filter": object()}, {"odd": 1}])
def test_a_search_of_another_kind_is_made_alone(client: Any, changed: dict[str, Any]) -> None:
    given = {"collection_name": NAME, "query": VECTORS[0], **changed}
    assert QDRANT.read(client, given) is None


def test_requests_of_a_batch_find_in_local_mode_what_each_finds_alone(server: Server) -> None:
    given = {"collection_name": NAME, "with_vectors": True, "limit": 3}
    queries = [{**given, "query": VECTORS[n], "query_filter": third(n)} for n in range(6)]
    read = [QDRANT.read(server.local, query) for query in queries]
    with server.lock:
        found = QDRANT.search(server.local, given, [one.query for one in read if one])
        assert found == [server.local.query_points(**query) for query in queries]


@given(VALUES, VALUES)
@PROPERTY
def test_filters_of_other_types_in_one_batch_find_what_each_finds_alone(
    client: Any, one: Any, other: Any
) -> None:
    shared = {"collection_name": NAME, "limit": 5, "query": VECTORS[0]}
    match = [{"key": "metadata.third", "match": {"value": value}} for value in (one, other)]
    queries = [{**shared, "query_filter": {"must": [part]}} for part in match]

    def ids(found: Any) -> list[Any]:
        return [point.id for point in found.points]

    reads = [QDRANT.read(client, query) for query in queries]
    batch = [read.query for read in reads if read]
    plain = [outcome(lambda n: ids(client.query_points(**queries[n])), n) for n in range(2)]
    together = outcome(lambda _: [*map(ids, QDRANT.search(client, shared, batch))], 0)
    # A batch of which one fails does so as a whole: each is made alone then.
    assert together == plain or (type(together) is str and str in map(type, plain))


@pytest.mark.parametrize(
    "fault",
    [lambda results: results[1:], lambda results: None, lambda results: results[len(results)]],
    ids=["fewer", "none", "refused"],
)
def test_searches_of_a_batch_that_is_not_answered_are_each_made_once_alone(
    client: Any, server: Server, accelerator: Accelerator, monkeypatch: Any, fault: Any
) -> None:
    store = langchain_qdrant.QdrantVectorStore(
        client, NAME, Numbered(), validate_collection_config=False
    )

    def search(number: int) -> Any:
        return store.similarity_search(f"{number}", filter=third(number))

    plain = [search(number) for number in range(CALLERS)]
    monkeypatch.setattr(server, "fault", fault)
    server.alone = 0
    assert at_once(within(accelerator, search), range(CALLERS)) == plain
    assert count(accelerator, "failed_store_calls") > 0
    assert server.alone == CALLERS


def add_middleware(client: Any) -> None:
    client._client.openapi_client.client.add_middleware(lambda request, send: send(request))


def add_hook(client: Any) -> None:
    hooks = {"request": [lambda request: None]}
    client._client.openapi_client.client._client.event_hooks = hooks


def replace_method(client: Any) -> None:
    client._client.query_batch_points = lambda **query: []


@pytest.mark.parametrize(
    ("settings", "change", "reason"),
    [
        ({"prefer_grpc": True}, None, "prefer_grpc=False"),
        ({"auth_token_provider": lambda: "token"}, None, "auth_token_provider may give"),
        ({}, add_middleware, "middleware of the program's"),
        ({}, add_hook, "a hook in event_hooks"),
        ({}, replace_method, "QdrantRemote.query_batch_points is replaced"),
    ],
)
def test_what_may_look_at_who_calls_is_named(
    server: Server, settings: dict[str, Any], change: Callable[[Any], None] | None, reason: str
) -> None:
    with closing(client_of(server, **settings)) as client:
        if change is not None:
            assert QDRANT.why_not(client) is None
            change(client)
        assert reason in str(QDRANT.why_not(client))


def test_a_client_in_this_process_asks_alone(server: Server) -> None:
    assert "QdrantLocal" in str(QDRANT.why_not(server.local))
