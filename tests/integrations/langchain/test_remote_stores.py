"""Searches of a scripted store on a server, by the rules of its row: which of them share a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from lc_waiting import wait_until

from langchain_rag_accel import activate, explain
from rag_accel import Accelerator
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.remote_stores import ReadSearch, SearchedClient, remote_store_row
from rag_accel.engines.retrieval.batched_search_engine import BatchedSearchEngine
from rag_accel_adapters.langchain.proxies import PROXIES

PATIENCE_S = 20.0


class Client:
    """A client that notes its calls, which wait for a gate.

    Attributes:
        calls: the queries of each; of a search alone as a text.
        running: a permit for each call that has begun.
        written: what searches find besides their query.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.gate = threading.Event()
        self.running = threading.Semaphore(0)
        self.written = ""
        self.token_provider: Any = None

    def find(self, query: str, where: Any = None) -> str:
        return self._answer(query, [query])[0]

    def find_all(self, queries: list[str]) -> list[str]:
        return self._answer(queries, queries)

    def _answer(self, call: Any, queries: list[str]) -> list[str]:
        self.calls.append(call)
        self.running.release()
        assert self.gate.wait(PATIENCE_S)
        for query in queries:
            if query.startswith("bad"):
                raise ValueError(f"{call}: no such place")
        return [f"{query} {self.written}".strip() for query in queries]


class Store(VectorStore):
    """A store that searches by its client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return [Document(self.client.find(query, **kwargs))]


def check(client: Any) -> None:
    if client.token_provider is not None:
        raise NotAdoptedError("a token_provider may look at who calls", "a token")


def read(client: Any, given: Mapping[str, Any]) -> ReadSearch | None:
    where = given.get("where")
    return None if isinstance(where, list) else ReadSearch(given["query"], where)


def find_all(client: Any, given: Mapping[str, Any], queries: list[str]) -> Sequence[str]:
    return client.find_all(queries)


CLIENT = f"{__name__}.Client"
ROW = partial(SearchedClient, CLIENT, "find", check=check, read=read, search=find_all)
ACTS = "its own methods run; searches that wait at the same time go in one call"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> type[Store]:
    """Give a new known class, of whose searches three go in a call; nobody has seen it yet."""
    row = ROW(parameters=frozenset({"query", "where"}), max_queries=3)
    store = remote_store_row("client", ("similarity_search",), row, ("a token provider",))
    monkeypatch.setitem(PROXIES._known, f"{__name__}.KnownStore", store)
    return type("KnownStore", (Store,), {"__module__": __name__})


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.gate.set()


class Searches:
    """Searches in threads, in the order in which they begin."""

    def __init__(self, store: Store, accelerator: Accelerator, pool: ThreadPoolExecutor) -> None:
        self.client, self.store, self.num_queued = store.client, store, 0
        self._accelerator, self._pool = accelerator, pool

    def begin(self, query: str, of: Any = None, **more: Any) -> Future[list[Document]]:
        store = self.store if of is None else of

        def run() -> list[Document]:
            with activate(self._accelerator):
                return store.similarity_search(query, **more)

        return self._pool.submit(run)

    def send(self, query: str, **more: Any) -> Future[list[Document]]:
        """Begin a search, and return once a call of its own runs."""
        begun = self.begin(query, **more)
        assert self.client.running.acquire(timeout=PATIENCE_S)
        return begun

    def queue(self, query: str, **more: Any) -> Future[list[Document]]:
        """Begin a search, and return once it has come to the engine."""
        before, begun = self.num_queued, self.begin(query, **more)
        wait_until(lambda: self.num_queued > before, "a search that comes to the engine")
        return begun


@pytest.fixture
def searches(
    client: Client,
    known: type[Store],
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Searches]:
    with ThreadPoolExecutor(16) as pool:
        made = Searches(known(client), accelerator, pool)
        start = BatchedSearchEngine._start

        def counted(engine: BatchedSearchEngine, jobs: Sequence[Any]) -> None:
            start(engine, jobs)
            made.num_queued += len(jobs)

        monkeypatch.setattr(BatchedSearchEngine, "_start", counted)
        yield made
        client.gate.set()


def texts(*searches: Future[list[Document]]) -> list[str]:
    return [one.result(PATIENCE_S)[0].page_content for one in searches]


def test_a_search_that_overlaps_no_other_is_the_stores_own(
    searches: Searches, client: Client
) -> None:
    client.gate.set()
    assert texts(searches.begin("a")) == ["a"]
    assert client.calls == ["a"]
    assert searches.num_queued == 0


def test_searches_that_wait_share_calls_of_so_many_as_the_row_says(
    searches: Searches, client: Client
) -> None:
    first = [searches.send("a"), searches.send("b")]
    waiting = [searches.queue(query) for query in "cdef"]
    client.gate.set()
    assert texts(*first, *waiting) == list("abcdef")
    assert client.calls[:2] == ["a", ["b"]]
    assert sorted(client.calls[2:]) == [["c", "d", "e"], ["f"]]


def test_searches_of_another_key_share_no_call_and_wait_for_none(
    searches: Searches, client: Client
) -> None:
    begun = [searches.send("a"), searches.send("b"), searches.send("c", where="there")]
    begun += [searches.send("d", where="there")]
    assert client.calls == ["a", ["b"], "c", ["d"]]
    client.gate.set()
    assert texts(*begun) == list("abcd")


def test_a_search_that_cannot_be_compared_is_made_alone(searches: Searches, client: Client) -> None:
    begun = [searches.send("a"), searches.send("b", where=["odd"])]
    client.gate.set()
    assert texts(*begun) == ["a", "b"]
    assert client.calls == ["a", "b"]


def test_after_a_failed_call_each_search_has_its_own_result_or_error(
    searches: Searches, client: Client
) -> None:
    first = [searches.send("a"), searches.send("b")]
    bad, good = searches.queue("bad"), searches.queue("d")
    client.gate.set()
    assert texts(*first, good) == ["a", "b", "d"]
    with pytest.raises(ValueError, match=r"^bad: no such place$"):
        bad.result(PATIENCE_S)
    assert client.calls[2] == ["bad", "d"]
    assert sorted(client.calls[3:]) == ["bad", "d"]


def test_a_search_that_begins_after_a_write_sees_it_while_a_call_is_in_flight(
    searches: Searches, client: Client
) -> None:
    first = [searches.send("a"), searches.send("b")]
    client.written = "written"
    after = searches.queue("c")
    client.gate.set()
    texts(*first)
    assert texts(after) == ["c written"]


def test_wrong_arguments_raise_as_the_clients_method_does(
    searches: Searches, client: Client
) -> None:
    client.gate.set()
    with pytest.raises(TypeError, match="unexpected keyword argument 'wherever'"):
        searches.begin("a", wherever=1).result(PATIENCE_S)


def test_a_subclass_that_searches_in_its_own_way_asks_alone(
    searches: Searches, client: Client, known: type[Store]
) -> None:
    class OtherStore(known):  # type: ignore[valid-type, misc]
        def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
            return super().similarity_search(query, k, **kwargs)

    other = OtherStore(client)
    begun = [searches.send("a", of=other), searches.send("b", of=other)]
    client.gate.set()
    assert texts(*begun) == ["a", "b"]
    assert client.calls == ["a", "b"]


def test_searches_of_two_clients_share_no_call(
    searches: Searches, client: Client, known: type[Store]
) -> None:
    other = Client()
    other.gate.set()
    begun = [searches.send("a"), searches.begin("b", of=known(other))]
    assert texts(begun[1]) == ["b"]
    assert other.calls == ["b"]
    client.gate.set()
    assert texts(begun[0]) == ["a"]


async def test_async_searches_share_calls_in_the_accelerators_threads(
    client: Client, known: type[Store], accelerator: Accelerator
) -> None:
    client.gate.set()
    store = known(client)
    with activate(accelerator):
        found = await asyncio.gather(*(store.asimilarity_search(str(n)) for n in range(32)))
    assert [documents[0].page_content for documents in found] == [str(n) for n in range(32)]
    asked = [
        query for call in client.calls for query in ([call] if isinstance(call, str) else call)
    ]
    assert sorted(asked) == sorted(map(str, range(32)))


def test_explain_says_that_searches_go_together_or_what_refuses(
    client: Client, known: type[Store]
) -> None:
    store = known(client)
    assert f"recognised store: {ACTS}" in str(explain(store))
    client.token_provider = object()
    assert "a token_provider may look at who calls; a token" in str(explain(store))


def test_a_client_of_another_class_or_version_asks_alone_and_says_so(client: Client) -> None:
    other = ROW(parameters=frozenset({"query", "filter"}))
    assert other.why_not(client) == "this version's find has other parameters"
    assert str(other.why_not(object())).startswith("its client is a builtins.object")
    del client.token_provider
    known = ROW(parameters=frozenset({"query", "where"}))
    assert known.why_not(client) == f"this version of {CLIENT} is not known: AttributeError"
