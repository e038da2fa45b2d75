"""Rerankers that speak ``/rerank``: equal calls in flight are one, calls wait for their turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import requests
from aiohttp import web
from langchain_community.document_compressors import jina_rerank
from langchain_core.documents import Document
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index_instrumentation.dispatcher import Dispatcher
from loopback_server import LoopbackServer
from requests.adapters import HTTPAdapter

import langchain_rag_accel
import llama_index_rag_accel
from rag_accel import Accelerator
from rag_accel_adapters.libraries.http_rerankers import (
    LANGCHAIN_JINA,
    LLAMA_INDEX_JINA,
    LLAMA_INDEX_TEI,
    HttpReranker,
)

TEXTS = ["a bridge", "a river", "the longest bridge of all"]
PATIENCE_S = 30.0


class RerankServer(LoopbackServer):
    """Answer as Jina does, and as TEI does: longer texts rank higher.

    Attributes:
        calls: the key, the query and the texts of each call.
        statuses: of the next answers that are refusals.
        awaited: calls that must have come before the first is answered.
        most: calls that were in flight at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, list[str]]] = []
        self.statuses: list[int] = []
        self.awaited = self.most = self._in_flight = 0
        self.held = threading.Event()
        self.held.set()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer every path."""
        router.add_post("/{page:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        is_tei = "texts" in body
        texts = body["texts" if is_tei else "documents"]
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.calls.append((key, body["query"], texts))
        self._in_flight += 1
        self.most = max(self.most, self._in_flight)
        status = self.statuses.pop(0) if self.statuses else 200
        while len(self.calls) < self.awaited or not self.held.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        self._in_flight -= 1
        if status != 200:
            told = {"error": "overloaded", "error_type": "overloaded", "detail": "no"}
            return web.json_response(told, status=status)
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        score = "score" if is_tei else "relevance_score"
        ranks = [{"index": at, score: len(texts[at]) / 100} for at in order]
        return web.json_response(ranks if is_tei else {"results": ranks[: body["top_n"]]})


Make = Callable[..., Any]
Changes = tuple[tuple[Callable[[Any], object], str], ...]


@dataclass(frozen=True)
class Case:
    """A class: how it is made, what it raises where its server refuses, and what stops sharing.

    Args:
        integration: of its framework.
        known: what is known of the class.
        make: makes an object, given an address, a key and a class.
        error: what it raises where the server refuses a call.
        changes: of an object after which it asks alone, and the reason.
    """

    integration: ModuleType
    known: HttpReranker
    make: Callable[..., Any]
    error: type[Exception]
    changes: Changes

    def accelerate(self, plain: Any, accelerator: Accelerator) -> Any:
        return self.integration.accelerate(plain, accelerator=accelerator)

    def rank(self, obj: Any, query: str = "q", texts: list[str] = TEXTS) -> Any:
        """Return the texts that an object ranks, with their scores."""
        if self.integration is langchain_rag_accel:
            found = obj.compress_documents([Document(text) for text in texts], query)
            return [(one.page_content, one.metadata["relevance_score"]) for one in found]
        nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts]
        found = obj.postprocess_nodes(nodes, QueryBundle(query))
        return [(one.text, one.score) for one in found]

    def refused(self, obj: Any, query: str = "q") -> bool:
        """Tell whether an object ranks nothing, but raises the error of its class."""
        try:
            return not self.rank(obj, query)
        except self.error:
            return True


def _lc_jina(url: str, key: str = "k", cls: Any = jina_rerank.JinaRerank) -> Any:
    return cls(jina_api_key=key)


def _li_jina(url: str, key: str = "k", cls: Any = None) -> Any:
    module = pytest.importorskip("llama_index.postprocessor.jinaai_rerank")
    return (cls or module.JinaRerank)(base_url=url, api_key=key, top_n=3)


def _li_tei(url: str, key: str = "k", cls: Any = None) -> Any:
    module = pytest.importorskip("llama_index.postprocessor.tei_rerank")
    return (cls or module.TextEmbeddingInference)(base_url=url, auth_token=key)


def _session(obj: Any) -> requests.Session:
    return getattr(obj, "_session", None) or obj.session


def _look(response: Any, **more: Any) -> None:
    """Look at a response, as a program's hook does."""


OWN_ADAPTER = type("OwnAdapter", (HTTPAdapter,), {})
SESSION_CHANGES: Changes = (
    (lambda obj: _session(obj).hooks["response"].append(_look), "its session has an auth or hooks"),
    (lambda obj: setattr(_session(obj), "auth", ("a", "b")), "its session has an auth or hooks"),
    (lambda obj: _session(obj).mount("http://", OWN_ADAPTER()), "its session sends by a"),
    (lambda obj: setattr(_session(obj), "post", _session(obj).post), "Session.post is replaced"),
)
TEI_CHANGES: Changes = (
    (lambda obj: vars(obj).update(_call_api=obj._call_api), "_call_api is set on the object"),
    (lambda obj: setattr(obj, "auth_token", str), "auth_token holds what is no plain"),
)
LC, LI = langchain_rag_accel, llama_index_rag_accel
CASES = {
    "langchain-jina": Case(LC, LANGCHAIN_JINA, _lc_jina, RuntimeError, SESSION_CHANGES),
    "llama-index-jina": Case(LI, LLAMA_INDEX_JINA, _li_jina, RuntimeError, SESSION_CHANGES),
    "llama-index-tei": Case(LI, LLAMA_INDEX_TEI, _li_tei, TypeError, TEI_CHANGES),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RerankServer]:
    """Yield a loopback server of both protocols, which LangChain's class takes for Jina's."""
    with RerankServer() as made:
        monkeypatch.setattr(jina_rerank, "JINA_API_URL", f"{made.base_url}/rerank")
        yield made


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Yield an accelerator that raises its own errors."""
    with Accelerator(strict=True) as made:
        yield made


@pytest.fixture
def make(case: Case, server: RerankServer) -> Iterator[Make]:
    """Yield a maker of objects on that server, whose connections end with the test."""
    objects: list[Any] = []

    def made(**fields: Any) -> Any:
        objects.append(case.make(server.base_url, **fields))
        return objects[-1]

    yield made
    for obj in objects:
        for name in case.known.protocol.clients:
            getattr(obj, name).close()


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def num_waiting(accelerator: Accelerator) -> int:
    """Return how many callers wait for an equal call."""
    flights: list[Any] = list(accelerator.shared_answers._flights.values())
    return sum(len(flight.answers._condition._waiters) for flight in flights)


def ask_at_once(accelerator: Accelerator, server: RerankServer, ask: Make) -> list[Any]:
    """Return what five threads find, all but the first of which wait for the first."""
    server.held.clear()
    with ThreadPoolExecutor(5) as threads:
        asking = [threads.submit(ask) for _ in range(5)]
        until = time.monotonic() + PATIENCE_S
        while num_waiting(accelerator) < 4 and time.monotonic() < until:
            time.sleep(0.005)
        server.held.set()
        return [one.result(PATIENCE_S) for one in asking]


def test_equal_calls_in_flight_are_one(
    case: Case, make: Make, server: RerankServer, accelerator: Accelerator
) -> None:
    plain = make()
    expected = case.rank(plain)
    server.calls.clear()
    fast = case.accelerate(plain, accelerator)
    assert ask_at_once(accelerator, server, lambda: case.rank(fast)) == [expected] * 5
    assert server.calls == [("k", "q", TEXTS)]
    assert case.rank(fast) == expected  # nothing is cached
    assert len(server.calls) == 2


async def test_tasks_share_a_call(
    case: Case, make: Make, server: RerankServer, accelerator: Accelerator
) -> None:
    fast = case.accelerate(make(), accelerator)
    if case.integration is langchain_rag_accel:
        documents = [Document(text) for text in TEXTS]
        asking = [fast.acompress_documents(documents, "q") for _ in range(4)]
    else:
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
        asking = [fast.apostprocess_nodes(nodes, query_str="q") for _ in range(4)]
    server.held.clear()
    found = asyncio.gather(*asking)
    async with asyncio.timeout(PATIENCE_S):
        while num_waiting(accelerator) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    server.held.set()
    assert [len(ranked) for ranked in await found] == [3] * 4
    assert len(server.calls) == 1


def test_other_queries_texts_keys_and_addresses_are_asked_for_apart(
    case: Case, make: Make, server: RerankServer, accelerator: Accelerator
) -> None:
    fast = case.accelerate(make(), accelerator)
    other_key = case.accelerate(make(key="another"), accelerator)
    asks = [(fast, "q", TEXTS), (fast, "r", TEXTS), (fast, "q", TEXTS[:2])]
    asks.append((other_key, "q", TEXTS))
    server.awaited = len(asks)  # a call that waited for another would never be answered
    with ThreadPoolExecutor() as threads:
        found = [threads.submit(case.rank, *ask) for ask in asks]
        assert [len(one.result(PATIENCE_S)) for one in found] == [3, 3, 2, 3]
    assert {key for key, _, _ in server.calls} == {"k", "another"}


def test_a_failed_call_is_made_again_by_each_who_waited(
    case: Case, make: Make, server: RerankServer, accelerator: Accelerator
) -> None:
    fast = case.accelerate(make(), accelerator)
    server.statuses = [400]
    found = ask_at_once(accelerator, server, lambda: case.refused(fast))
    assert sorted(found) == [False] * 4 + [True]
    assert len(server.calls) == 5


@pytest.mark.parametrize("limits", [True, False])
def test_calls_of_a_program_wait_where_its_endpoint_refuses_some(
    case: Case, make: Make, server: RerankServer, *, limits: bool
) -> None:
    queries = [f"query {number}" for number in range(8)]
    with Accelerator(strict=True, endpoint_limits=limits) as accelerator:
        fast = case.accelerate(make(), accelerator)
        with ThreadPoolExecutor(8) as threads:
            server.awaited, server.statuses = 8, [429] * 7
            assert sum(threads.map(lambda query: case.refused(fast, query), queries)) == 7
            server.most, server.awaited = 0, 0 if limits else 16
            assert not any(threads.map(lambda query: case.refused(fast, query), queries))
    assert len(server.calls) == 16  # nobody has tried again, as plain
    assert (server.most < 8) is limits


def test_an_object_with_something_of_the_programs_asks_alone(
    case: Case, make: Make, server: RerankServer, accelerator: Accelerator
) -> None:
    explain = case.integration.explain
    expected = case.rank(make())
    for change, why in case.changes:
        made = make()
        assert "equal calls in flight are one" in explain(case.accelerate(made, accelerator))
        change(made)
        fast = case.accelerate(made, accelerator)
        assert why in explain(fast)
        assert case.rank(fast) == expected
    assert num_waiting(accelerator) == 0


def test_a_subclass_and_a_replaced_method_ask_alone(
    case: Case,
    make: Make,
    server: RerankServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cls: Any = type(make())
    leaf = case.known.leaves[0]
    same = type("Same", (cls,), {"__module__": __name__})
    own: Any = {"__module__": __name__, leaf: lambda self, *args, **more: []}
    explain = case.integration.explain

    def explained(of: type) -> str:
        return explain(case.accelerate(make(cls=of), accelerator))

    assert "Same is a class of the program's; its base class" in explained(same)
    assert f"Other overrides a method of {cls.__name__}" in explained(type("Other", (cls,), own))
    monkeypatch.setattr(cls, leaf, lambda self, *args, **more: ["replaced"])
    assert f"{leaf} is a function of {__name__}" in explained(cls)


def test_an_option_switches_each_effect(case: Case, make: Make) -> None:
    for off, told in (
        (["single_flight"], "own methods run; once its endpoint refuses calls, they wait"),
        (["endpoint_limits"], "own methods run; equal calls in flight are one\n"),
        (["endpoint_limits", "single_flight"], "single_flight is off; single_flight=True and"),
    ):
        options: Any = dict.fromkeys(off, False)
        with Accelerator(strict=True, **options) as accelerator:
            explained = case.integration.explain(case.accelerate(make(), accelerator))
        assert told in f"{explained}\n"


@pytest.mark.parametrize("case", list(CASES.values())[1:], ids=list(CASES)[1:])
def test_each_caller_has_its_own_events(
    case: Case,
    make: Make,
    server: RerankServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, debug, seen = make(), LlamaDebugHandler(print_trace_on_end=False), list[str]()
    plain.callback_manager = CallbackManager([debug])
    monkeypatch.setattr(Dispatcher, "event", lambda _, event: seen.append(event.class_name()))
    fast = case.accelerate(plain, accelerator)
    ask_at_once(accelerator, server, lambda: case.rank(fast))
    assert sorted(seen) == ["ReRankEndEvent"] * 5 + ["ReRankStartEvent"] * 5
    assert len(debug.get_event_pairs()) == 5
