"""The engine that embeds on servers: shared calls, none of which waits for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.embedding.hosted_engine import (
    MAX_CALL_TEXTS,
    MAX_REQUEST_CHARS,
    MAX_REQUEST_TEXTS,
    AskAloneError,
    AskServer,
    HostedEmbeddingEngine,
    ServerAnswer,
    ServerTexts,
    is_small,
)
from rag_accel.engines.http.retry_after import retry_delay_s
from rag_accel.errors import ClosedError
from rag_accel.testing import ManualClock
from rag_accel.testing.conformance import EngineContract

PATIENCE_S = 20.0


def work(id: str, *texts: str, server: AskServer, **how: Any) -> EngineRequest:
    """Return a request to embed these texts, by default its own name."""
    asked = texts or (id,)
    payload = ServerTexts(asked, **{"group": "g", "ask": server, **how})
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, payload, size=len(asked))


def vector(text: str) -> list[float]:
    """Return what the server makes of a text: numbers that are no float32."""
    return [len(text) / 3, 0.1]


class Server:
    """Answer calls, and note them.

    Attributes:
        calls: the texts of each.
        gate: calls wait for it.
        errors: what a call with such a text raises.
        all_run: set once as many calls run as ``expected``.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.expected = 1
        self.all_run = threading.Event()
        self.errors: dict[str, Exception] = {}

    def __call__(self, texts: list[str]) -> ServerAnswer:
        self.calls.append(texts)
        if len(self.calls) >= self.expected:
            self.all_run.set()
        assert self.gate.wait(PATIENCE_S)
        for text in texts:
            if text in self.errors:
                raise self.errors[text]
        return ServerAnswer([vector(text) for text in texts])


def finish(engine: Engine, *ids: str) -> dict[str, EngineOutput]:
    """Step until these have ended."""
    found: dict[str, EngineOutput] = {}
    for _ in range(1000):
        found.update((output.id, output) for output in engine.step(StepBudget(time_s=5.0)))
        if found.keys() >= set(ids):
            return found
    raise AssertionError(f"still at work: {set(ids) - found.keys()}")


@pytest.fixture
def server() -> Server:
    """Give a server that answers at once."""
    return Server()


@pytest.fixture
def engine() -> Iterator[HostedEmbeddingEngine]:
    """Give an engine that gathers for longer than a test submits."""
    made = HostedEmbeddingEngine(gather_s=0.02)
    yield made
    made.close()


class TestContract(EngineContract):
    def make_engine(self) -> Engine:
        return HostedEmbeddingEngine()

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", server=Server())

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad", server=Server()), payload=GenerationInput(()))


def test_what_comes_together_is_one_call_and_numbers_are_the_servers(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    ids = [f"text {number}" for number in range(MAX_CALL_TEXTS)]
    engine.submit([work(id, server=server) for id in ids])
    found = finish(engine, *ids)
    assert server.calls == [ids]
    for id in ids:
        assert found[id].value.tolist() == [vector(id)]
        assert found[id].value.dtype == np.float64


def test_a_request_that_comes_meanwhile_prolongs_the_gathering_four_times_at_most(
    server: Server,
) -> None:
    clock = ManualClock()
    engine = HostedEmbeddingEngine(gather_s=1.0, clock=clock)
    ids = ["a", "b", "c", "d", "e"]
    for id in ids:
        engine.submit([work(id, server=server)])
        assert engine.step(StepBudget(time_s=0.0)) == []
        assert server.calls == []
        clock.advance(0.9)
    finish(engine, *ids)
    assert server.calls == [ids]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, namespace="another"),
        lambda one: replace(one, payload=replace(one.payload, group="another")),
        lambda one: replace(one, payload=replace(one.payload, role="document")),
    ],
)
def test_what_differs_shares_no_call(
    engine: HostedEmbeddingEngine,
    server: Server,
    change: Callable[[EngineRequest], EngineRequest],
) -> None:
    engine.submit([work("a", server=server), change(work("b", server=server))])
    finish(engine, "a", "b")
    assert sorted(server.calls) == [["a"], ["b"]]


def test_no_call_waits_for_another(engine: HostedEmbeddingEngine, server: Server) -> None:
    server.gate.clear()
    server.expected = 8
    ids = [f"{number}" for number in range(16)]
    engine.submit([work(id, id, f"{id}!", server=server, max_texts=4) for id in ids])
    engine.step(StepBudget(time_s=0.0))
    assert server.all_run.wait(PATIENCE_S)
    engine.submit([work("later", server=server)])
    server.all_run.clear()
    server.expected = 9
    while not server.all_run.is_set():
        engine.step(StepBudget(time_s=0.01))
    server.gate.set()
    finish(engine, *ids, "later")
    assert {len(texts) for texts in server.calls[:8]} == {4}
    assert server.calls[8] == ["later"]


def test_a_call_has_no_more_characters_than_a_server_takes(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    texts = [letter * MAX_REQUEST_CHARS for letter in "abcdefghij"]
    engine.submit([work(text[0], text, server=server) for text in texts])
    finish(engine, *(text[0] for text in texts))
    assert sorted(map(len, server.calls)) == [2, 8]


class Refused(Exception):
    def __init__(
        self, status_code: int, headers: dict[str, str] | None = None, text: str = ""
    ) -> None:
        super().__init__(text)
        self.status_code = status_code
        self.request = object()
        self.response = SimpleNamespace(headers=headers or {})


def test_after_a_failure_each_asks_alone_and_learns_nothing_of_the_others(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    server.errors["secret of b"] = Refused(429, {"retry-after": "1.5"}, "secret of b")
    engine.submit([work("a", server=server), work("b", "secret of b", server=server)])
    found = finish(engine, "a", "b")
    errors = [found[id].error for id in ("a", "b")]
    assert errors[0] is not errors[1]
    for error in errors:
        assert isinstance(error, AskAloneError)
        assert error.delay_s == 1.5
        assert "secret" not in f"{error!r} {error} {vars(error)}"
        assert error.__cause__ is None
        assert error.__context__ is None
        assert error.__traceback__ is None
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (ValueError("x"), 0.0, 0.0),
        (Refused(400), 0.0, 0.0),
        (Refused(400, {"x-should-retry": "true"}), 0.375, 0.5),
        (Refused(422, {"retry-after": "7"}), 0.0, 0.0),
        (Refused(500), 0.375, 0.5),
        (Refused(500, {"x-should-retry": "false"}), 0.0, 0.0),
        (Refused(503, {"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}), 0.0, 0.0),
        (Refused(503, {"retry-after": "Sat, 01 Jan 2000 00:00:00 GMT"}), 0.375, 0.5),
        (Refused(429, {"retry-after": "7"}), 7.0, 7.0),
        (Refused(429, {"retry-after-ms": "70", "retry-after": "7"}), 0.07, 0.07),
        (Refused(429, {"retry-after": "121"}), 0.0, 0.0),
    ],
)
def test_the_wait_before_asking_again_is_the_clients(
    error: Exception, least: float, most: float
) -> None:
    assert least <= retry_delay_s(error) <= most


def test_a_lost_connection_is_waited_for() -> None:
    error = Refused(0)
    del error.response
    assert 0.375 <= retry_delay_s(error) <= 0.5


def test_after_a_wrong_number_of_vectors_each_asks_alone() -> None:
    engine = HostedEmbeddingEngine()
    engine.submit([work("a", server=lambda texts: ServerAnswer([[1.0]] * (len(texts) + 1)))])
    assert isinstance(finish(engine, "a")["a"].error, AskAloneError)


def test_an_error_with_odd_headers_is_heard_of(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    error = server.errors["a"] = Refused(500)
    error.response.headers = None
    engine.submit([work("a", server=server)])
    found = finish(engine, "a")["a"].error
    assert isinstance(found, AskAloneError)
    assert found.delay_s == 0.0


def test_cancelled_work_is_not_reported_and_not_sent(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    server.gate.clear()
    engine.submit([work("sent", server=server, max_texts=1)])
    engine.step(StepBudget(time_s=0.0))
    assert server.all_run.wait(PATIENCE_S)
    engine.submit([work("kept", server=server), work("gone", server=server)])
    engine.cancel([WorkId("gone"), WorkId("sent")])
    server.gate.set()
    assert finish(engine, "kept").keys() == {"kept"}
    assert server.calls == [["sent"], ["kept"]]


def test_a_closed_engine_refuses_work_and_leaves_no_thread(
    engine: HostedEmbeddingEngine, server: Server
) -> None:
    before = set(threading.enumerate())
    server.gate.clear()
    engine.submit([work("a", server=server, max_texts=1)])
    engine.step(StepBudget(time_s=0.0))
    assert server.all_run.wait(PATIENCE_S)
    opened = threading.Timer(0.05, server.gate.set)
    opened.start()
    engine.close()
    opened.join()
    assert set(threading.enumerate()) <= before
    engine.close()
    with pytest.raises(ClosedError):
        engine.submit([work("b", server=server)])


@pytest.mark.parametrize(
    ("texts", "small"),
    [
        (["a"], True),
        (["a"] * MAX_REQUEST_TEXTS, True),
        (["a"] * (MAX_REQUEST_TEXTS + 1), False),
        (["a" * (MAX_REQUEST_CHARS + 1)], False),
        (["a", ""], False),
        ([], False),
    ],
)
def test_only_a_small_request_may_share(texts: list[str], small: bool) -> None:
    assert is_small(texts) == small
