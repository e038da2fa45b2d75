"""The engine that embeds on a server: few calls, nobody harmed by another's text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
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
    TextBatch,
    WorkId,
)
from rag_accel.engines.embedding.hosted_engine import HostedEmbeddingEngine
from rag_accel.errors import ClosedError, EngineError, EngineOutputError
from rag_accel.testing.conformance import EngineContract

PATIENCE_S = 20.0


def work(id: str, *texts: str) -> EngineRequest:
    """Return a request to embed these texts, by default its own name."""
    return EngineRequest(
        WorkId(id), "r", PrimitiveKind.EMBEDDING, TextBatch(texts or (id,)), size=len(texts) or 1
    )


def vector(text: str) -> list[float]:
    """Return what the server makes of a text: numbers that are no float32."""
    return [len(text) / 3, 0.1]


class Server:
    """Answer calls, and note them.

    Attributes:
        calls: the texts of each.
        gate: calls wait for it.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.num_running = self.most_running = 0
        self.errors: dict[str, Exception] = {}

    def __call__(self, texts: list[str]) -> Sequence[Any]:
        self.calls.append(texts)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            assert self.gate.wait(PATIENCE_S)
            for text in texts:
                if text in self.errors:
                    raise self.errors[text]
            return [vector(text) for text in texts]
        finally:
            self.num_running -= 1


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


class TestContract(EngineContract):
    def make_engine(self) -> Engine:
        return HostedEmbeddingEngine(Server())

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}")

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad"), payload=GenerationInput(()))


def test_what_comes_together_is_one_call_and_numbers_are_the_servers(server: Server) -> None:
    engine = HostedEmbeddingEngine(server)
    ids = [f"text {number}" for number in range(64)]
    engine.submit([work(id) for id in ids])
    found = finish(engine, *ids)
    assert server.calls == [ids]
    for id in ids:
        assert found[id].value.tolist() == [vector(id)]
        assert found[id].value.dtype == np.float64


def test_what_comes_within_the_gathering_joins(server: Server) -> None:
    engine = HostedEmbeddingEngine(server, gather_s=0.2)
    engine.submit([work("a")])
    assert engine.step(StepBudget(time_s=0.0)) == []
    engine.submit([work("b")])
    finish(engine, "a", "b")
    assert server.calls == [["a", "b"]]


def test_limits_of_a_call_and_of_calls_are_kept(server: Server) -> None:
    engine = HostedEmbeddingEngine(server, max_batch=4, max_calls=2)
    server.gate.clear()
    ids = [f"{number}" for number in range(30)]
    engine.submit([work(id, id, id) for id in ids])
    engine.step(StepBudget(time_s=0.05))
    server.gate.set()
    finish(engine, *ids)
    assert {len(texts) for texts in server.calls} == {4}
    assert server.most_running == 2


def test_a_request_larger_than_a_call_goes_alone(server: Server) -> None:
    engine = HostedEmbeddingEngine(server, max_batch=2)
    engine.submit([work("a"), work("large", "x", "y", "z"), work("b")])
    assert len(finish(engine, "a", "large", "b")["large"].value) == 3
    assert sorted(server.calls) == [["a"], ["b"], ["x", "y", "z"]]


def test_a_bad_text_fails_alone(server: Server) -> None:
    server.errors["w5"] = ValueError("no")
    engine = HostedEmbeddingEngine(server)
    ids = [f"w{number}" for number in range(16)]
    engine.submit([work(id) for id in ids])
    found = finish(engine, *ids)
    assert {id for id in ids if found[id].kind == "error"} == {"w5"}
    assert found["w5"].error is server.errors["w5"]
    assert len(server.calls) <= 2 * 4 + 1


class Refused(Exception):
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(("status", "num_calls"), [(400, 3), (422, 3), (429, 1), (500, 1)])
def test_only_what_is_the_inputs_fault_is_tried_in_parts(
    server: Server, status: int, num_calls: int
) -> None:
    server.errors["bad"] = Refused(status)
    engine = HostedEmbeddingEngine(server)
    engine.submit([work("good"), work("bad")])
    found = finish(engine, "good", "bad")
    assert len(server.calls) == num_calls
    assert found["bad"].error is server.errors["bad"]
    assert (found["good"].kind == "final") == (num_calls == 3)


def test_a_wrong_number_of_vectors_is_a_named_error() -> None:
    engine = HostedEmbeddingEngine(lambda texts: [[1.0]] * (len(texts) + 1))
    engine.submit([work("a")])
    assert isinstance(finish(engine, "a")["a"].error, EngineOutputError)


def test_cancelled_work_is_not_reported_and_not_sent(server: Server) -> None:
    engine = HostedEmbeddingEngine(server, max_calls=1)
    server.gate.clear()
    engine.submit([work("sent")])
    engine.step(StepBudget(time_s=0.02))
    engine.submit([work("kept"), work("gone")])
    engine.cancel([WorkId("gone"), WorkId("sent")])
    server.gate.set()
    assert finish(engine, "kept").keys() == {"kept"}
    assert server.calls == [["sent"], ["kept"]]


def test_an_interrupt_ends_a_step(server: Server) -> None:
    server.gate.clear()
    engine = HostedEmbeddingEngine(server)
    engine.submit([work("a")])
    engine.interrupt()
    assert engine.step(StepBudget()) == []
    server.gate.set()


@pytest.mark.parametrize(
    "bad",
    [
        replace(work("a"), kind=PrimitiveKind.SEARCHING),
        replace(work("a"), payload=GenerationInput(())),
    ],
)
def test_bad_work_ends_alone(server: Server, bad: EngineRequest) -> None:
    engine = HostedEmbeddingEngine(server)
    engine.submit([work("good"), bad])
    found = finish(engine, "good", "a")
    assert found["good"].kind == "final"
    assert isinstance(found["a"].error, EngineError)


def test_a_closed_engine_refuses_work(server: Server) -> None:
    engine = HostedEmbeddingEngine(server)
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        engine.submit([work("a")])
