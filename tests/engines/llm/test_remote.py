"""The HTTP engine against a loopback server: contract, faults, retries, cancellation."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Handle,
    Message,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.llm.emulated import EmulatedDevice
from rag_accel.engines.llm.emulated_faults import Fault
from rag_accel.engines.llm.emulated_server import EmulatedServer
from rag_accel.engines.llm.emulated_table import H100_LIKE_8B
from rag_accel.engines.llm.emulated_time import VirtualTime
from rag_accel.engines.llm.remote import OpenAICompatibleEngine
from rag_accel.engines.llm.remote_options import RemoteOptions, RetryPolicy
from rag_accel.errors import ClosedError, ConfigError, EngineError, RemoteEngineError
from rag_accel.testing.conformance import EngineContract

ENDLESS = replace(H100_LIKE_8B, name="endless", base_ms=3_600_000.0)
URL = "http://server.test/v1"

MakeEngine = Callable[..., OpenAICompatibleEngine]


def work(id: str = "a", max_tokens: int = 4, **fields: Any) -> EngineRequest:
    payload = GenerationInput((Message("user", "what is rag"),), max_tokens=max_tokens)
    return EngineRequest(WorkId(id), "r", PrimitiveKind.DECODING, payload, **fields)


def finish(engine: Engine, *ids: str) -> list[EngineOutput]:
    left, outputs = set(ids), []
    for _ in range(1000):  # a step may also return without outputs
        batch = engine.step(StepBudget(time_s=10.0))
        outputs.extend(batch)
        left -= {output.id for output in batch if output.kind in ("final", "error")}
        if not left:
            return outputs
    raise AssertionError(f"still at work: {left}")


def run(engine: Engine, request: EngineRequest) -> EngineOutput:
    engine.submit([request])
    return finish(engine, request.id)[-1]


def error_of(output: EngineOutput) -> RemoteEngineError:
    assert output.kind == "error"
    assert isinstance(output.error, RemoteEngineError)
    return output.error


def eventually(condition: Callable[[], bool]) -> None:
    signal = threading.Event()
    for _ in range(2000):
        if condition():
            return
        signal.wait(0.002)
    raise AssertionError("the condition never held")


class Naps:
    """Note the pauses between attempts without sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    time = VirtualTime()
    with EmulatedDevice("h100_like_8b", clock=time, waiter=time) as made:
        yield made


@pytest.fixture
def server(device: EmulatedDevice) -> Iterator[EmulatedServer]:
    with EmulatedServer(device) as made:
        yield made


@pytest.fixture
def make_engine(naps: Naps) -> Iterator[MakeEngine]:
    made: list[OpenAICompatibleEngine] = []

    def make(base_url: str = URL, **fields: Any) -> OpenAICompatibleEngine:
        engine = OpenAICompatibleEngine(base_url, "m", **{"sleep": naps, **fields})
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make_engine: MakeEngine, server: EmulatedServer) -> OpenAICompatibleEngine:
    return make_engine(server.base_url)


class TestContract(EngineContract):
    @pytest.fixture(autouse=True)
    def _serve(self, server: EmulatedServer) -> None:
        self.server = server

    def make_engine(self) -> Engine:
        return OpenAICompatibleEngine(self.server.base_url, "m")

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", max_tokens=3 + number)

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad"), payload=TextBatch(("x",)))

    def make_waiting_request(self) -> EngineRequest:
        self.server.script(Fault("slow", delay_s=60.0))
        return work("waiting")


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_counts_are_those_of_the_server(
    engine: OpenAICompatibleEngine, device: EmulatedDevice, stream: bool
) -> None:
    request = work(stream=stream)
    assert run(engine, request).value == device.generate(request.payload)


def test_a_stream_arrives_word_by_word(engine: OpenAICompatibleEngine) -> None:
    engine.submit([work(stream=True)])
    outputs = finish(engine, "a")
    assert [output.kind for output in outputs] == ["partial"] * 4 + ["final"]
    assert [output.revision for output in outputs] == [1, 2, 3, 4, 4]


def test_computing_elsewhere_takes_no_threads_of_ours(engine: OpenAICompatibleEngine) -> None:
    profile = engine.profile
    assert profile.max_threads == 0
    assert profile.stepped
    assert profile.interruptible
    assert not profile.speculatable
    assert not profile.pure


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [Fault("status", status=429), Fault("status", status=503), Fault("drop"), Fault("truncate")],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_passing_fault_is_mended_by_another_attempt(
    engine: OpenAICompatibleEngine, server: EmulatedServer, naps: Naps, fault: Fault, stream: bool
) -> None:
    server.script(fault)
    assert run(engine, work(stream=stream)).kind == "final"
    assert server.num_calls == 2
    assert len(naps.seconds) == 1


def test_retry_after_is_waited_for(
    engine: OpenAICompatibleEngine, server: EmulatedServer, naps: Naps
) -> None:
    server.script(Fault("status", status=429, retry_after="7"))
    run(engine, work())
    assert 7.0 <= naps.seconds[0] <= 7.5


def test_pauses_repeat_with_the_seed(
    make_engine: MakeEngine, server: EmulatedServer, naps: Naps
) -> None:
    for _ in range(2):
        server.script(Fault("drop"), Fault("drop"))
        options = RemoteOptions(retry=RetryPolicy(seed=5))
        run(make_engine(server.base_url, options=options), work())
    assert naps.seconds[:2] == naps.seconds[2:]
    assert len(set(naps.seconds)) == 2


@pytest.mark.parametrize("status", [429, 500])
def test_attempts_are_bounded(
    make_engine: MakeEngine, server: EmulatedServer, naps: Naps, status: int
) -> None:
    server.script(*[Fault("status", status=status, message="no luck")] * 9)
    options = RemoteOptions(retry=RetryPolicy(max_attempts=3))
    error = error_of(run(make_engine(server.base_url, options=options), work()))
    assert server.num_calls == 3
    assert len(naps.seconds) == 2
    assert error.status == status
    assert "no luck" in str(error)
    assert "attempt 3" in str(error)


def test_a_retry_after_beyond_the_bound_ends_the_work(
    engine: OpenAICompatibleEngine, server: EmulatedServer, naps: Naps
) -> None:
    server.script(Fault("status", status=429, retry_after="3600"))
    assert error_of(run(engine, work())).status == 429
    assert naps.seconds == []


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "options"), (401, "api_key"), (404, "base_url"), (302, "base_url")]
)
def test_a_refusal_is_final_and_says_where_and_what_next(
    engine: OpenAICompatibleEngine, server: EmulatedServer, status: int, hint: str
) -> None:
    server.script(Fault("status", status=status, message="because"))
    error = error_of(run(engine, work()))
    assert server.num_calls == 1
    assert error.status == status
    assert error.where == f"{server.base_url}/chat/completions"
    assert "because" in str(error.found)
    assert hint in str(error.hint)


def test_nothing_is_repeated_after_the_first_streamed_token(
    engine: OpenAICompatibleEngine, server: EmulatedServer, naps: Naps
) -> None:
    server.script(Fault("truncate", after_deltas=2))
    engine.submit([work(stream=True)])
    outputs = finish(engine, "a")
    assert [output.kind for output in outputs] == ["partial", "partial", "error"]
    assert "broke before the answer was complete" in str(outputs[-1].error)
    assert server.num_calls == 1
    assert naps.seconds == []


@pytest.mark.parametrize("after", [0, 2])
def test_a_malformed_event_is_a_named_error(
    engine: OpenAICompatibleEngine, server: EmulatedServer, after: int
) -> None:
    server.script(Fault("malformed", after_deltas=after))
    error = error_of(run(engine, work(stream=True)))
    assert "not a chat chunk" in str(error)
    assert server.num_calls == 1


def test_malformed_json_is_a_named_error(
    engine: OpenAICompatibleEngine, server: EmulatedServer
) -> None:
    server.script(Fault("malformed"))
    assert "not a chat completion" in str(error_of(run(engine, work())))
    assert server.num_calls == 1


def test_a_slow_first_byte_is_waited_for(
    engine: OpenAICompatibleEngine, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=0.02))
    assert run(engine, work()).kind == "final"


def test_a_server_silent_for_too_long_is_a_named_error_and_not_asked_again(
    make_engine: MakeEngine, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=60.0))
    engine = make_engine(server.base_url, options=RemoteOptions(read_timeout_s=0.05))
    error = error_of(run(engine, work()))
    assert "silent for too long" in str(error)
    assert "read_timeout_s" in str(error)
    assert server.num_calls == 1


def test_a_server_that_is_not_there_is_a_named_error(
    make_engine: MakeEngine, server: EmulatedServer, naps: Naps
) -> None:
    url = server.base_url
    server.close()
    error = error_of(run(make_engine(url), work()))
    assert "no connection to the server" in str(error)
    assert error.status is None
    assert len(naps.seconds) == 3


def test_one_failing_request_does_not_harm_its_neighbours(
    engine: OpenAICompatibleEngine, server: EmulatedServer
) -> None:
    server.script(Fault("status", status=400))
    engine.submit([work(f"w{number}") for number in range(5)])
    kinds = [output.kind for output in finish(engine, *(f"w{number}" for number in range(5)))]
    assert sorted(kinds) == ["error"] + ["final"] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_closes_the_connection(make_engine: MakeEngine, stream: bool) -> None:
    with EmulatedDevice(ENDLESS) as device, EmulatedServer(device) as server:
        engine = make_engine(server.base_url)
        engine.submit([work(stream=stream)])
        eventually(lambda: device.stats().running == 1)
        engine.cancel([WorkId("a")])
        eventually(lambda: device.stats().running == 0)
        assert engine.step(StepBudget(time_s=0.0)) == []


def test_a_cancelled_id_may_be_used_for_other_work(
    engine: OpenAICompatibleEngine, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=60.0))
    engine.submit([work(max_tokens=9)])
    eventually(lambda: server.num_calls == 1)
    engine.cancel([WorkId("a")])
    assert run(engine, work(max_tokens=2)).value.completion_tokens == 2


def test_no_more_requests_are_in_flight_than_allowed(make_engine: MakeEngine) -> None:
    running, most = 0, 0

    async def respond(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return httpx.Response(200, json={"choices": [{"message": {"content": "x"}}]})

    options = RemoteOptions(concurrency=3)
    engine = make_engine(transport=httpx.MockTransport(respond), options=options)
    ids = [f"w{number}" for number in range(12)]
    engine.submit([work(id) for id in ids])
    assert {output.kind for output in finish(engine, *ids)} == {"final"}
    assert most == 3
    assert engine.profile.max_batch == 3


def test_an_answer_longer_than_allowed_is_a_named_error(make_engine: MakeEngine) -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"x" * 101)

    options = RemoteOptions(max_response_bytes=100)
    engine = make_engine(transport=httpx.MockTransport(respond), options=options)
    for id, stream in (("whole", False), ("stream", True)):
        assert "too long" in str(error_of(run(engine, work(id, stream=stream))))


def test_a_stream_that_ends_without_its_end_mark_is_complete_after_a_finish_reason(
    make_engine: MakeEngine,
) -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        event = b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'
        return httpx.Response(200, content=event)

    engine = make_engine(transport=httpx.MockTransport(respond))
    assert run(engine, work(stream=True)).value.text == "hi"


def test_a_stream_that_ends_early_is_a_named_error(make_engine: MakeEngine) -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n')

    engine = make_engine(transport=httpx.MockTransport(respond))
    assert "broke" in str(error_of(run(engine, work(stream=True))))


class Body(httpx.AsyncByteStream):
    """Stream one event and the end mark; then end, or hang."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
        yield b"data: [DONE]\n\n"
        if self.hangs:
            await asyncio.Event().wait()
        self.is_read = True


def test_a_stream_is_read_to_its_end_so_that_its_connection_is_used_again(
    make_engine: MakeEngine,
) -> None:
    body = Body(hangs=False)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=body))
    assert run(make_engine(transport=transport), work(stream=True)).value.text == "hi"
    assert body.is_read


def test_a_server_that_hangs_after_the_end_mark_does_not_hold_the_answer_back(
    make_engine: MakeEngine,
) -> None:
    body = Body(hangs=True)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=body))
    assert run(make_engine(transport=transport), work(stream=True)).value.text == "hi"


def test_an_unforeseen_error_of_the_transport_is_an_error_of_its_work(
    make_engine: MakeEngine,
) -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError("surprise")

    engine = make_engine(transport=httpx.MockTransport(respond))
    assert "ZeroDivisionError: surprise" in str(error_of(run(engine, work())))


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (replace(work("bad"), kind=PrimitiveKind.PREFILLING), EngineError, "PREFILLING"),
        (replace(work("bad"), payload=TextBatch(("x",))), EngineError, "TextBatch"),
        (work("bad", handle=Handle("h")), EngineError, "servers keep none"),
        (
            replace(work("bad"), payload=GenerationInput((), options={"model": "x"})),
            ConfigError,
            "model",
        ),
    ],
)
def test_bad_work_ends_alone_with_a_named_error(
    engine: OpenAICompatibleEngine, bad: EngineRequest, kind: type[Exception], text: str
) -> None:
    engine.submit([work("good"), bad])
    outputs = {output.id: output for output in finish(engine, "good", "bad")}
    assert outputs[WorkId("good")].kind == "final"
    assert isinstance(outputs[WorkId("bad")].error, kind)
    assert text in str(outputs[WorkId("bad")].error)


def test_a_step_ends_with_its_budget_and_on_interrupt(
    engine: OpenAICompatibleEngine, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=60.0))
    engine.submit([work()])
    assert engine.step(StepBudget(time_s=0.01)) == []
    engine.interrupt()
    assert engine.step(StepBudget()) == []


def test_closing_drops_what_is_in_flight_and_leaves_no_thread() -> None:
    with EmulatedDevice(ENDLESS) as device, EmulatedServer(device) as server:
        before = threading.active_count()
        engine = OpenAICompatibleEngine(server.base_url, "m")
        assert threading.active_count() == before
        engine.submit([work()])
        eventually(lambda: device.stats().running == 1)
        before = threading.active_count() - 1
        engine.close()
        engine.close()
        assert threading.active_count() == before
        eventually(lambda: device.stats().running == 0)


def test_a_closed_engine_refuses_work(engine: OpenAICompatibleEngine) -> None:
    engine.close()
    with pytest.raises(ClosedError):
        engine.submit([work()])


def test_a_missing_httpx_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=r"rag-accel\[http\]"):
        OpenAICompatibleEngine(URL, "m")
