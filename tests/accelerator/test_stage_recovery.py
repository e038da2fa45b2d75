"""Stages that fail are tried again, then replaced; what was shown is never made again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from accel_harness import become_idle, internal_errors
from graph_text import parse, references
from idle_accelerators import soon_idle

from rag_accel import (
    END,
    START,
    Accelerator,
    Constant,
    GraphError,
    RAGraph,
    Retry,
)
from rag_accel.engine_api import Document, EngineRequest, PrimitiveKind
from rag_accel.engines import (
    CallableEmbeddingEngine,
    KnowledgeEngine,
    MemoryGraph,
    OpenAICompatibleEngine,
)
from rag_accel.errors import RemoteEngineError
from rag_accel.graph.text import format
from rag_accel.server import Server
from rag_accel.testing import FakeEngine, Faults

PATIENCE_S = 20.0
LOST = ConnectionResetError("the peer went away")


def dead() -> FakeEngine:
    """Be an engine that no work reaches."""
    return FakeEngine(faults=Faults(submit_error=LOST))


def ask(**options: Any) -> RAGraph:
    return RAGraph().add_generation("answer", "{input}", **options).add_edge(START, "answer")


def whole(graph: RAGraph, last: str = "answer") -> RAGraph:
    return graph.add_edge(last, END)


def test_a_fallback_answers_from_the_same_values_and_is_told_of() -> None:
    graph = whole(ask(retry=Retry(1, backoff_s=0.0), fallback="spare"))
    with Accelerator(llm=dead(), engines={"spare": FakeEngine()}) as accelerator:
        handle = accelerator.submit(graph, input="why")
        found = handle.result(PATIENCE_S)
        assert (handle.retries, handle.fallbacks) == ({"answer": 1}, {"answer": 1})
        counts = accelerator.metrics.snapshot()
        assert counts["retries"] == counts["fallbacks"] == {"answer": 1}
        assert handle.usage.completion_tokens > 0
        assert soon_idle(accelerator)
    with Accelerator(llm=FakeEngine()) as accelerator:
        assert accelerator.run(whole(ask()), input="why") == found


def overloaded() -> tuple[OpenAICompatibleEngine, list[httpx2.Request]]:
    """An engine whose server answers every request with 503, and the requests it got."""
    calls: list[httpx2.Request] = []

    def fail(request: httpx2.Request) -> httpx2.Response:
        calls.append(request)
        return httpx2.Response(503, headers={"retry-after-ms": "1"})

    transport = httpx2.MockTransport(fail)
    engine = OpenAICompatibleEngine("http://server.test/v1", "m", transport=transport)
    return engine, calls


@pytest.mark.parametrize(
    ("retry", "num_calls"),
    [
        (None, 4),  # the client's own
        (0, 4),
        (2, 3),
        (Retry(1, backoff_s=0.0), 2),
        (Retry(1, backoff_s=0.0, on=RemoteEngineError), 2),
        (Retry(1, backoff_s=0.0, on=lambda error: True), 2),
        (Retry(1, backoff_s=0.0, on=KeyError), 4),
    ],
)
def test_attempts_of_a_stage_take_the_place_of_those_of_its_client(
    retry: Any, num_calls: int
) -> None:
    engine, calls = overloaded()
    with Accelerator(llm=engine) as accelerator, pytest.raises(RemoteEngineError, match="HTTP 503"):
        accelerator.run(whole(ask(retry=retry)), input="why")
    assert len(calls) == num_calls


def test_a_fallback_stage_has_the_attempts_of_its_client() -> None:
    spare, calls = overloaded()
    graph = whole(ask(retry=Retry(1, backoff_s=0.0), fallback="spare"))
    with (
        Accelerator(llm=dead(), engines={"spare": spare}) as accelerator,
        pytest.raises(RemoteEngineError, match="HTTP 503"),
    ):
        accelerator.run(graph, input="why")
    assert len(calls) == 4


async def test_a_counted_run_has_the_result_and_the_counts_of_its_own_stages() -> None:
    graph = whole(ask(retry=Retry(1, backoff_s=0.0), fallback="spare"))
    with Accelerator(llm=dead(), engines={"spare": FakeEngine()}) as accelerator:
        whole_result = await accelerator.arun(graph, input="why")
        found = await asyncio.gather(
            *(accelerator.arun_counted(graph, {"input": "why"}) for _ in range(3))
        )
        for counted in found:
            assert counted.output == whole_result
            assert (counted.retries, counted.fallbacks) == ({"answer": 1}, {"answer": 1})
        with pytest.raises(GraphError):
            await accelerator.arun_counted(graph, {"other": "why"})
        assert soon_idle(accelerator)
    with Accelerator(llm=dead()) as accelerator, pytest.raises(ConnectionResetError):
        await accelerator.arun_counted(whole(ask()), {"input": "why"})


@pytest.mark.parametrize("spare", ["owned", "callable", "coroutine"])
@pytest.mark.parametrize("first", ["owned", "callable"])
def test_each_form_of_engine_may_replace_each_other(first: str, spare: str) -> None:
    def failing(prompt: str) -> str:
        raise LOST

    async def later(prompt: str) -> str:
        return f"spare: {prompt}"

    spares: dict[str, Any] = {
        "owned": FakeEngine(),
        "callable": lambda prompt: f"spare: {prompt}",
        "coroutine": later,
    }
    llm = dead() if first == "owned" else failing
    graph = whole(ask(fallback="spare"))
    with Accelerator(llm=llm, engines={"spare": spares[spare]}) as accelerator:
        found = accelerator.run(graph, input="why")
        assert "why" in found
        assert asyncio.run(accelerator.arun(graph, input="why")) == found
        assert list(accelerator.stream(graph, input="why")) == [found]
        assert accelerator.compile(graph).run(input="why") == found
        assert soon_idle(accelerator)


@dataclass
class Notes:
    """An object of a user's that holds a list."""

    notes: list[str] = field(default_factory=list)


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("value", "notes_in"),
    [
        ([], lambda value: value),
        ([[]], lambda value: value[0]),
        (([],), lambda value: value[0]),
        ({"notes": []}, lambda value: value["notes"]),
        ({"all": [{"notes": []}]}, lambda value: value["all"][0]["notes"]),
        (Notes(), lambda value: value.notes),
        ([Document("a", "text", {"notes": []})], lambda value: value[0].metadata["notes"]),
        ({"lock": LOCK, "notes": ([],)}, lambda value: value["notes"][0]),
    ],
)
def test_each_request_may_write_into_a_constant_of_its_own(
    value: Any, notes_in: Callable[[Any], list[str]]
) -> None:
    together = threading.Barrier(2)

    def failing(name: str) -> Any:
        raise LOST

    def write(found: Any, name: str) -> Any:
        notes_in(found).append(name)
        together.wait(PATIENCE_S)
        return found

    graph = RAGraph().add_function("find", failing, inputs=["input"], fallback=Constant(value))
    graph.add_function("write", write, inputs=["find", "input"]).add_edge(START, "find")
    whole(graph.add_edge("find", "write"), "write")
    with Accelerator(namespace="ada") as ada, Accelerator(namespace="bob") as bob:
        handles = [tenant.submit(graph, input=name) for tenant, name in ((ada, "a"), (bob, "b"))]
        handles += [ada.submit(graph, input=name) for name in "cd"]
        found = [handle.result(PATIENCE_S) for handle in handles]
    assert [notes_in(one) for one in found] == [["a"], ["b"], ["c"], ["d"]]
    assert notes_in(value) == []


def test_what_cannot_be_copied_of_a_constant_is_the_same_for_all_requests() -> None:
    for value in (LOCK, [LOCK]):
        with Accelerator(llm=dead()) as accelerator:
            found = accelerator.run(whole(ask(fallback=Constant(value))), input="why")
        assert found == value


def test_a_search_falls_back_on_a_callable_though_its_embedder_failed() -> None:
    graph = RAGraph().add_retrieval("docs", fallback="web").add_edge(START, "docs")
    graph.add_edge("docs", END)
    web: Callable[..., Any] = lambda query, k: [query] * k  # noqa: E731
    with Accelerator(embedder=dead(), index=FakeEngine(), engines={"web": web}) as accelerator:
        found = accelerator.run(graph, input="why")
    assert [document.document.text for document in found] == ["why"] * 5


class LostOnItsWay(KnowledgeEngine):
    """An engine of a graph whose connection is lost on the first hop."""

    def submit(self, work: Sequence[EngineRequest]) -> None:
        if any(request.kind is PrimitiveKind.EXPANDING for request in work):
            raise LOST
        super().submit(work)


def paths(engine: KnowledgeEngine, fallback: str | Constant | None = None, **more: Any) -> Any:
    """Search paths; with ``more``, what may run instead."""
    graph = RAGraph().add_graph_retrieval("facts", fallback=fallback, link="words")
    whole(graph.add_edge(START, "facts"), "facts")
    embedder = CallableEmbeddingEngine(lambda texts: [[float(len(text)), 1.0] for text in texts])
    with Accelerator(embedder=embedder, graph=engine) as accelerator:
        for name, (spare, kind) in more.items():
            accelerator.add_engine(name, spare, kind)
        found = accelerator.run(graph, input="Ada")
        assert soon_idle(accelerator)
        return found


def test_a_search_of_paths_is_replaced_as_a_whole() -> None:
    triples = [("Ada", "wrote to", "Charles"), ("Charles", "designed", "the engine")]
    known, other = MemoryGraph(triples), MemoryGraph([("x", "is", "y"), *triples])
    expected = paths(KnowledgeEngine(other))
    spare = (KnowledgeEngine(other), None)
    assert paths(LostOnItsWay(known), "spare", spare=spare) == expected
    assert len(expected) == 2
    found = paths(LostOnItsWay(known), "web", web=(lambda query, k: [query], PrimitiveKind.PRUNING))
    assert [document.document.text for document in found] == ["Ada"]
    assert paths(LostOnItsWay(known), Constant(("fact",))) == ("fact",)


def test_a_rerank_in_slices_is_replaced_as_a_whole() -> None:
    documents = [Document(str(number), "x" * number) for number in range(40)]
    graph = RAGraph(inputs=("input", "found")).add_rerank(
        "best", documents="found", top_n=3, fallback="spare"
    )
    whole(graph.add_edge(START, "best"), "best")
    longest: Callable[[str, Sequence[str]], list[float]] = lambda query, texts: [  # noqa: E731
        float(len(text)) for text in texts
    ]
    with Accelerator(reranker=dead()) as accelerator:
        accelerator.add_engine("spare", longest, PrimitiveKind.RERANKING)
        best = accelerator.run(graph, input="why", found=documents)
        assert [item.document.id for item in best] == ["39", "38", "37"]
        once = accelerator.run(graph, input="why", found=iter(documents))
        assert [item.document.id for item in once] == ["39", "38", "37"]


@pytest.mark.parametrize("steps", [1, 2])
def test_an_engine_that_hangs_is_replaced_and_used_again_once_it_returns(steps: int) -> None:
    hang = threading.Event()
    llm = FakeEngine(steps=steps, faults=Faults(hang=hang))
    parts: dict[str, Any] = {"engines": {"spare": FakeEngine()}, "step_timeout_s": 0.3}
    with Accelerator(llm=llm, **parts) as accelerator:
        handle = accelerator.submit(whole(ask(fallback="spare")), input="why")
        found = handle.result(PATIENCE_S)
        assert handle.fallbacks == {"answer": 1}
        hang.set()
        become_idle(accelerator)
        assert accelerator.run(whole(ask()), input="why") == found
        assert internal_errors(accelerator) == 0


def test_a_stream_that_failed_before_its_first_token_streams_the_fallback() -> None:
    graph = whole(ask(fallback="spare"))
    with Accelerator(llm=dead(), engines={"spare": FakeEngine(steps=3)}) as accelerator:
        pieces = list(accelerator.stream(graph, input="why is that so"))
        assert len(pieces) > 1
        assert "".join(pieces) == accelerator.run(graph, input="why is that so")


def test_documents_that_come_once_are_there_at_every_attempt() -> None:
    seen: list[list[str]] = []

    def flaky(query: str, texts: list[str]) -> list[float]:
        seen.append(texts)
        if len(seen) == 1:
            raise LOST
        return [float(len(text)) for text in texts]

    graph = RAGraph(inputs=("input", "found")).add_rerank(
        "best", documents="found", retry=Retry(1, backoff_s=0.0)
    )
    whole(graph.add_edge(START, "best"), "best")
    documents = [Document(str(number), "x" * number) for number in range(3)]
    with Accelerator(reranker=flaky) as accelerator:
        best = accelerator.run(graph, input="why", found=iter(documents))
    assert [item.document.id for item in best] == ["2", "1", "0"]
    assert seen == [["", "x", "xx"]] * 2


def test_documents_that_broke_off_are_never_taken_for_all() -> None:
    def breaking() -> Iterator[Document]:
        yield Document("0", "x")
        raise LOST

    graph = RAGraph(inputs=("input", "found")).add_rerank(
        "best", documents="found", retry=Retry(2, backoff_s=0.0)
    )
    whole(graph.add_edge(START, "best"), "best")
    for reranker in (FakeEngine(), lambda query, texts: [0.0] * len(texts)):
        with Accelerator(reranker=reranker) as accelerator, pytest.raises(ConnectionResetError):
            accelerator.run(graph, input="why", found=breaking())


def test_misuse_is_neither_tried_again_nor_replaced() -> None:
    calls: list[str] = []

    def wrong(prompt: str) -> str:
        calls.append(prompt)
        raise TypeError("a bug")

    graph = whole(ask(retry=Retry(3, backoff_s=0.0), fallback=Constant("never")))
    with Accelerator(llm=wrong) as accelerator, pytest.raises(TypeError, match="a bug"):
        accelerator.run(graph, input="why")
    assert len(calls) == 1


def test_a_predicate_that_raises_is_told_of_with_the_error() -> None:
    def wrong(error: BaseException) -> bool:
        raise ZeroDivisionError("in the predicate")

    graph = whole(ask(retry=Retry(1, backoff_s=0.0, on=wrong)))
    with Accelerator(llm=dead()) as accelerator:
        with pytest.raises(ConnectionResetError) as caught:
            accelerator.run(graph, input="why")
        assert soon_idle(accelerator)
    assert any("in the predicate" in note for note in caught.value.__notes__)


def test_functions_and_conditions_are_tried_again_where_asked_for() -> None:
    tries: dict[str, int] = {}

    def flaky(name: str, value: Any) -> Any:
        tries[name] = tries.get(name, 0) + 1
        if tries[name] == 1:
            raise TimeoutError(name)
        return value

    again = Retry(1, backoff_s=0.0)
    graph = RAGraph().add_function("fn", lambda values: flaky("fn", 1), retry=again)
    graph.add_edge(START, "fn").add_edge("fn", lambda values: flaky("if", END), [END], retry=again)
    with Accelerator() as accelerator:
        accelerator.run(graph, input="why")
    assert tries == {"fn": 2, "if": 2}


def test_a_server_tells_what_failed() -> None:
    graph = whole(ask(retry=Retry(1, backoff_s=0.0), fallback=Constant("sorry")))
    with Server(llm=dead()) as server:
        server.add_request("why", graph)
        (result,) = list(server)
    assert result.unwrap() == "sorry"
    assert (result.retries, result.fallbacks) == ({"answer": 1}, {"answer": 1})


@pytest.mark.parametrize("retry", [-1, True, "x", 1.5, 101, object()])
def test_a_bad_number_of_attempts_is_refused(retry: Any) -> None:
    with pytest.raises(GraphError, match="stage option out of range"):
        ask(retry=retry)
    with pytest.raises(GraphError, match="stage option out of range"):
        RAGraph().with_retry(retry)


@pytest.mark.parametrize(
    "parts",
    [
        {"backoff_s": -1.0},
        {"backoff_s": float("nan")},
        {"max_backoff_s": float("inf")},
        {"backoff_s": 3601.0},
        {"backoff_s": "1"},
        {"on": "x"},
        {"on": (int,)},
        {"on": ()},
    ],
)
def test_a_bad_retry_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="stage option out of range"):
        Retry(1, **parts)


def test_a_bad_fallback_is_refused() -> None:
    for fallback in ("", 3, FakeEngine()):
        with pytest.raises(GraphError, match="fallback of stage 'answer'"):
            ask(fallback=fallback)
    with pytest.raises(GraphError, match="fallback of stage 'fn'"):
        RAGraph().add_function("fn", print, fallback="llm")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="a branch has no fallback"):
        RAGraph().add_edge("a", lambda values: END, fallback="llm")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="an edge without a condition"):
        RAGraph().add_edge("a", "b", retry=2)


def test_a_fallback_must_be_an_engine_that_fits_the_stage() -> None:
    with Accelerator(llm=FakeEngine(), engines={"spare": FakeEngine()}) as accelerator:
        with pytest.raises(GraphError, match=r"'spar'.*did you mean 'spare'"):
            accelerator.compile(whole(ask(fallback="spar")))
        accelerator.add_engine("web", lambda query, k: [], PrimitiveKind.SEARCHING)
        with pytest.raises(GraphError, match=r"engine 'web' is a callable .*\(its fallback\)"):
            accelerator.compile(whole(ask(fallback="web")))


def test_the_options_are_shown_and_read_back() -> None:
    graph = whole(ask(retry=Retry(3, on=KeyError), fallback=Constant({"a": [1]})))
    graph.add_retrieval("docs", retry=2, fallback="web").add_rerank(
        "best", documents="docs", retry=Retry(1, backoff_s=0.25), fallback=Constant(object())
    )
    text = format(graph)
    assert 'retry=2 fallback="web"' in text
    assert 'fallback={"constant": {"a": [1]}}' in text
    assert parse(text, references(graph)) == graph.freeze()
    with Accelerator(llm=FakeEngine(), engines={"spare": FakeEngine()}) as accelerator:
        told = accelerator.explain(whole(ask(retry=2, fallback="spare")))
    assert 'retry=2 fallback="spare"' in told
    assert "spare: owned" in told
