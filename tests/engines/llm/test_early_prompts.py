"""Beginnings of prompts that a server is sent early, and never in the way of other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from chat_server import UNANSWERED, ChatServer, Fault
from llm_harness import MakeEngine, Naps, eventually, run, work
from named_servers import NamedServer
from vllm_chat_server import VllmChatServer, chat_servers

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    PromptUse,
    WorkId,
)
from rag_accel.engines import OpenAICompatibleEngine, RemoteLLM, RemoteOptions, VllmServerOptions
from rag_accel.engines.http.endpoint_limit import EndpointCall
from rag_accel.engines.http.endpoints import PROCESS_ENDPOINTS, Endpoints
from rag_accel.engines.llm.remote.early_prompts import REFUSED_S
from rag_accel.engines.llm.remote.remote_llm import PIECE, keys_of
from rag_accel.engines.llm.remote.servers import SERVERS
from rag_accel.engines.llm.remote.vllm_server_options import EARLY_PRIORITY
from rag_accel.errors import BusyError, ConfigError, RemoteEngineError
from rag_accel.testing import ManualClock

MakeServer = Callable[..., VllmChatServer]
HISTORY = Message("user", "the turns before " * 20)
LONG = "The earlier turns of this conversation. " * 20


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Yield a maker of servers, which end with the test."""
    with chat_servers() as make:
        yield make


@pytest.fixture(autouse=True)
def fresh_servers() -> Iterator[None]:
    SERVERS.clear()
    yield
    SERVERS.clear()


def beginning(id: str = "early", *messages: Message, **fields: Any) -> EngineRequest:
    kind = PrimitiveKind.PARTIAL_PREFILLING
    return work(id, *(messages or (HISTORY,)), kind=kind, max_tokens=None, **fields)


def refusal_of(engine: Any, request: EngineRequest) -> str:
    error = run(engine, request).error
    assert isinstance(error, BusyError)
    return str(error)


def test_it_is_one_greedy_token_and_tells_what_the_prompt_cost(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    engine = make_engine(server.base_url, early=True)
    request = beginning(namespace="ada")
    payload = replace(request.payload, stop=("x",), options={"cache_salt": "s", "temperature": 0.9})
    assert run(engine, replace(request, payload=payload)).value == PromptUse(53, 7)
    run(engine, replace(work(namespace="ada"), payload=replace(payload, max_tokens=4)))
    early, whole = server.bodies
    assert early.pop("max_tokens") == 1
    assert early.pop("temperature") == 0
    # What is left are the fields of a request of the same tenant, its salt among them.
    assert early == {key: whole[key] for key in ("model", "messages", "cache_salt")}


def test_a_beginning_within_the_system_prompt_is_followed_by_an_empty_turn(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    run(make_engine(server.base_url, early=True), beginning("a", Message("system", "Be")))
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(("status", "sent"), [(200, [True, True]), (400, [True, False, False])])
def test_its_priority_is_behind_all_others_where_a_server_takes_them(
    make_server: MakeServer, make_engine: MakeEngine, status: int, sent: list[bool]
) -> None:
    server = make_server()
    server.priority_status = status
    options = VllmServerOptions(priority=True)
    engine = make_engine(server.base_url, early=True, vllm=options)
    for request in (beginning(depth=9, deadline=1.0), work(depth=0)):
        assert run(engine, request).kind == "final"
    assert ["priority" in body for body in server.bodies] == sent
    assert server.bodies[0]["priority"] == EARLY_PRIORITY > 0


def test_an_answer_without_a_text_is_as_good(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    server.answer = None  # type: ignore[assignment]  # of a model that thinks first
    engine = make_engine(server.base_url, early=True)
    assert run(engine, beginning()).value == PromptUse(53, 7)
    assert run(engine, work()).kind == "error"


def test_a_server_that_tells_no_usage_is_believed(make_engine: MakeEngine) -> None:
    with NamedServer("a") as server:
        output = run(make_engine(server.base_url, early=True), beginning())
    assert (output.kind, output.value) == ("final", None)


@pytest.mark.parametrize("status", [429, 503])
def test_it_is_not_repeated_and_a_refusal_ends_it_for_a_minute(
    server: ChatServer, make_engine: MakeEngine, naps: Naps, status: int
) -> None:
    clock = ManualClock(100.0)
    engine = make_engine(server.base_url, early=True, clock=clock)
    server.script(Fault("status", status))
    assert isinstance(run(engine, beginning()).error, RemoteEngineError)
    assert (server.num_calls, naps.seconds) == (1, [])
    clock.advance(REFUSED_S - 1)
    # Whoever asks the same server.
    other = make_engine(server.base_url, early=True, clock=clock)
    assert "less than 60 s ago" in refusal_of(other, beginning())
    clock.advance(1)
    assert run(other, beginning()).value == PromptUse(60)
    assert server.num_calls == 2


def test_a_refusal_of_a_request_that_is_answered_later_counts(
    server: ChatServer, make_engine: MakeEngine
) -> None:
    engine = make_engine(server.base_url, early=True)
    server.script(Fault("status", 429))
    assert run(engine, work()).kind == "final"
    assert server.num_calls == 2
    assert "less than 60 s ago" in refusal_of(engine, beginning())
    assert server.num_calls == 2


def test_it_is_not_sent_beside_other_work(server: ChatServer, make_engine: MakeEngine) -> None:
    engine = make_engine(server.base_url, early=True)
    server.script(UNANSWERED)
    engine.submit([work("own")])
    eventually(lambda: server.num_running == 1)
    assert "other work" in refusal_of(engine, beginning())
    engine.cancel([WorkId("own")])
    assert run(engine, beginning()).kind == "final"


def test_it_is_not_sent_beside_calls_of_a_program(
    server: ChatServer, make_engine: MakeEngine
) -> None:
    engine = make_engine(server.base_url, early=True)

    def ask(_: Any) -> str:
        return refusal_of(engine, beginning())

    endpoint = PROCESS_ENDPOINTS.of(("OpenAI", f"{server.base_url}/", "None", 1, ()))
    assert "calls of a program" in endpoint.call(ask)
    assert run(engine, beginning()).kind == "final"


def test_endpoints_hold_what_was_refused_or_is_in_flight() -> None:
    endpoints = Endpoints()
    limit, call = endpoints.of(("OpenAI", "http://h/v1/", "None")).limit, EndpointCall()
    assert not endpoints.holds("http://h/v1")
    limit.start_at_once(call, 0.0)
    assert endpoints.holds("http://h/v1")
    assert not endpoints.holds("http://h")
    limit.leave(call)
    limit.refuse(call, 1.0)
    assert endpoints.holds("http://h/v1")


def test_other_work_has_its_place_once_it_is_cancelled(
    server: ChatServer, make_engine: MakeEngine
) -> None:
    engine = make_engine(server.base_url, early=True, options=RemoteOptions(concurrency=1))
    server.script(UNANSWERED)
    engine.submit([beginning()])
    eventually(lambda: server.num_running == 1)
    engine.cancel([WorkId("early")])
    assert run(engine, work()).kind == "final"
    eventually(lambda: server.num_running == 0)  # its connection was closed


@pytest.mark.parametrize(
    ("urls", "bounds", "match"),
    [
        ("http://h/v1", {"early": "yes"}, r"RemoteLLM\.early.*'yes'"),
        ("http://h/v1", {"early": True, "kv_reuse": "full"}, "kv_reuse='full'"),
        ("https://api.openai.com/v1", {"early": True}, r"cost money.*api\.openai\.com"),
        (["http://h/v1", "https://x.azure.com/v1"], {"early": True}, r"found https://x\.azure"),
    ],
)
def test_what_cannot_be_asked_early_is_refused(urls: Any, bounds: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        RemoteLLM(urls, "m", **bounds)


def test_an_accelerator_whose_prompts_are_approximate_refuses_it() -> None:
    llm = RemoteLLM("http://h/v1", "m", early=True)
    assert llm.resolved({"kv_reuse": "exact"}).bounds.early
    with pytest.raises(ConfigError, match="kv_reuse='full'"):
        llm.resolved({"kv_reuse": "full"})
    with pytest.raises(ConfigError, match=r"OpenAICompatibleEngine\.early"):
        OpenAICompatibleEngine("https://api.openai.com/v1", "m", early=True)


def asking(search: Callable[[str], str] = str.upper) -> RAGraph:
    graph = RAGraph(["input", "history"])
    graph.add_function("search", search, "input", "text")
    graph.add_generation("answer", prompt="{history} {text}")
    return graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)


def test_stages_are_what_they_are_without_it() -> None:
    graphs = [asking()]
    graphs.append(RAGraph(["input", "history"]).add_retrieval("docs"))
    graphs[-1].add_generation("answer", prompt=f"{LONG} {{history}} {{docs}}")
    graphs[-1].add_edge(START, "docs").add_edge("docs", "answer").add_edge("answer", END)
    for graph in graphs:
        plans: list[list[str]] = []
        for early in (False, True):
            llm = RemoteLLM("http://h/v1", "m", early=early)
            with Accelerator(llm=llm, index=lambda query, k: [query]) as accelerator:
                lines = accelerator.explain(graph, "e-graph").splitlines()
                plans.append([line for line in lines if "@llm" in line or "answer" in line])
        own, early = plans
        assert [line for line in early if "early_prefilling" not in line] == own
        assert any("DECODING@llm" in line for line in own)
        assert not any("FULL_PREFILLING" in line for line in early)


def early_ended(accelerator: Accelerator, outcome: str) -> None:
    """Wait until the one beginning has ended."""

    def is_counted() -> bool:
        found: Any = accelerator.metrics.snapshot()
        return found.get("engines", {}).get("llm", {}).get(outcome) == 1

    eventually(is_counted)


def test_a_graph_begins_its_prompt_while_the_user_s_function_runs(make_server: MakeServer) -> None:
    server = make_server()
    with Accelerator(llm=RemoteLLM(server.base_url, "m", early=True)) as accelerator:

        def search(query: str) -> str:
            early_ended(accelerator, "early_done")
            return f"about {query}"

        answer = accelerator.run(asking(search), input="x", history=LONG)
        found = accelerator.metrics.snapshot()
    assert answer == "an answer"
    early, whole = (body["messages"][0]["content"] for body in server.bodies)
    assert whole == f"{early}about x"
    assert found["early_hits"] == {"answer": 1}
    assert [body.get("max_tokens") for body in server.bodies] == [1, None]


@pytest.fixture
def two() -> Iterator[list[NamedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(NamedServer(name)) for name in ("a", "b")]


def prompts(servers: list[NamedServer]) -> list[int]:
    return [len(server.prompts) for server in servers]


def test_a_prompt_has_the_keys_of_a_beginning_that_ends_within_a_message() -> None:
    def keys(content: str, namespace: str = "ada") -> Mapping[Any, int]:
        return keys_of(GenerationInput((Message("user", content),)), namespace)

    whole = keys(f"{LONG} and the rest")
    shared = whole.keys() & keys(f"{LONG} ").keys()
    assert sum(whole[key] for key in shared) == len(LONG) // PIECE * PIECE > 0
    assert sum(whole.values()) == len(f"{LONG} and the rest")
    assert not whole.keys() & keys(f"{LONG} ", "bob").keys()


def test_of_several_servers_the_prompt_follows_its_beginning(two: list[NamedServer]) -> None:
    llm = RemoteLLM([server.base_url for server in two], "m", early=True)
    with Accelerator(llm=llm) as accelerator:
        seen: list[list[int]] = []

        def search(query: str) -> str:
            # The early prompt may have come before this function begins.
            eventually(lambda: sum(prompts(two)) > 2 * len(seen))
            seen.append(prompts(two))
            return query

        for number in range(4):
            accelerator.run(asking(search), input=f"q{number}", history=f"{number} {LONG}")
            begun = seen[-1]
            ended = prompts(two)
            (at,) = [at for at in (0, 1) if ended[at] > begun[at]]
            history = f"{number} {LONG} "
            assert two[at].prompts[-2:] == [history, f"{history}q{number}"]
        assert accelerator.metrics.snapshot()["early_hits"] == {"answer": 4}


def test_of_several_servers_none_is_paused_or_asked_instead_for_it(two: list[NamedServer]) -> None:
    for server in two:
        server.status = 500
    llm = RemoteLLM([server.base_url for server in two], "m", early=True)
    with Accelerator(llm=llm) as accelerator:

        def search(query: str) -> str:
            early_ended(accelerator, "early_failed")
            for server in two:
                server.status = 200
            return query

        assert accelerator.run(asking(search), input="x", history=LONG) in ("a", "b")
        assert sorted(prompts(two)) == [0, 2]
        (llm_health,) = accelerator.health().parts
        assert {part.state for part in llm_health.parts} == {"ready"}


def test_of_several_servers_none_that_a_program_asks_is_sent_any(two: list[NamedServer]) -> None:
    llm = RemoteLLM([server.base_url for server in two], "m", early=True)
    with Accelerator(llm=llm) as accelerator:
        model: Any = accelerator.local_llms.model(llm)
        for _ in two:
            model.placement.take({}, 1)

        def search(query: str) -> str:
            early_ended(accelerator, "early_failed")
            return query

        accelerator.run(asking(search), input="x", history=LONG)
        assert sum(prompts(two)) == 1
