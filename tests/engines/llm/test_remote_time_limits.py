"""Ends of long remote calls: their own limits, a deadline, closing; never step_timeout_s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chat_server import UNANSWERED, ChatServer, Fault, answer_of
from llm_harness import PATIENCE_S, MakeEngine, error_of, eventually, finish, run, work
from raw_server import CLOSED_BY_END, HEAD, Line, RawServer

from rag_accel import END, START, Accelerator, ClosedError, DeadlineError, RAGraph
from rag_accel.engine_api import WorkId
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine

EVENT = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'


def drip_comments(line: Line) -> None:
    line.send(CLOSED_BY_END)
    line.drip(b": still there\n\n")


def drip_text(line: Line) -> None:
    line.send(CLOSED_BY_END)
    line.drip(EVENT)


def drip_blanks(line: Line) -> None:
    line.send(CLOSED_BY_END)
    line.drip(b" ")


def drip_headers(line: Line) -> None:
    line.send(HEAD)
    line.drip(b"x: y\r\n")


def flood_with_early_hints(line: Line) -> None:
    line.drip(b"HTTP/1.1 103 Early Hints\r\n\r\n")


def drip_a_refusal(line: Line) -> None:
    line.send(b"HTTP/1.1 500 Oops\r\nconnection: close\r\n\r\n")
    line.drip(b"x")


drips = pytest.mark.parametrize(
    "talk",
    [drip_comments, drip_text, drip_blanks, drip_headers, flood_with_early_hints, drip_a_refusal],
)
anyhow = pytest.mark.parametrize("stream", [False, True])


def one_generation() -> RAGraph:
    graph = RAGraph()
    graph.add_generation("answer", prompt="{input}", max_tokens=4)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


@pytest.mark.cross_product(keep=5)
@drips
@anyhow
def test_a_server_that_drips_is_given_up_after_the_total_time(
    make_engine: MakeEngine, talk: Callable[[Line], None], stream: bool
) -> None:
    with RawServer(talk) as server:
        options = RemoteOptions(total_timeout_s=0.4, max_retries=0)
        error = error_of(run(make_engine(server.base_url, options=options), work(stream=stream)))
        assert "took longer" in str(error)
        assert "total_timeout_s" in str(error.hint)
        assert server.left.wait(PATIENCE_S)
        assert server.num_calls == 1


def test_the_total_time_covers_all_attempts_together(make_engine: MakeEngine) -> None:
    def talk(line: Line) -> None:
        if server.num_calls == 2:
            drip_blanks(line)

    with RawServer(talk) as server:
        options = RemoteOptions(total_timeout_s=0.2)
        error = error_of(run(make_engine(server.base_url, options=options), work()))
        assert "took longer" in str(error)
        assert server.num_calls == 2


def test_a_pause_ends_with_the_total_time(server: ChatServer) -> None:
    server.script(Fault("status", status=429, retry_after="50"))
    engine = OpenAICompatibleEngine(
        server.base_url, "m", options=RemoteOptions(total_timeout_s=0.2)
    )
    error = error_of(run(engine, work()))
    engine.close()
    assert "took longer" in str(error)
    assert server.num_calls == 1


def test_the_total_time_does_not_count_while_work_waits_for_its_turn(
    make_engine: MakeEngine, server: ChatServer
) -> None:
    server.script(UNANSWERED)
    options = RemoteOptions(concurrency=1, total_timeout_s=1.0)
    engine = make_engine(server.base_url, options=options)
    engine.submit([work("first"), work("second")])
    ends = {output.id: output.kind for output in finish(engine, "first", "second")}
    assert ends == {"first": "error", "second": "final"}


@drips
@anyhow
def test_cancelling_ends_a_call_that_drips(
    make_engine: MakeEngine, talk: Callable[[Line], None], stream: bool
) -> None:
    # Without retries: a refused attempt that is retried leaves by itself, before it is cancelled.
    options = RemoteOptions(max_retries=0)
    with RawServer(talk) as server:
        engine = make_engine(server.base_url, options=options)
        engine.submit([work(stream=stream)])
        eventually(lambda: server.num_calls == 1)
        assert not server.left.is_set()
        engine.cancel([WorkId("a")])
        assert server.left.wait(PATIENCE_S)


@pytest.mark.parametrize("talk", [drip_comments, drip_text, drip_headers])
def test_a_deadline_ends_a_call_that_drips(talk: Callable[[Line], None]) -> None:
    with RawServer(talk) as server:
        llm = OpenAICompatibleEngine(server.base_url, "m")
        with Accelerator(llm=llm) as accelerator:
            for way in (accelerator.run, lambda *a, **k: list(accelerator.stream(*a, **k))):
                server.left.clear()
                # On a busy machine a deadline can pass before the call has reached the server.
                for deadline_s in (0.1, 1.0, PATIENCE_S / 2):
                    num_calls = server.num_calls
                    with pytest.raises(DeadlineError):
                        way(one_generation(), input="x", deadline_s=deadline_s)
                    if server.num_calls > num_calls:
                        break
                assert server.left.wait(PATIENCE_S)


@pytest.mark.parametrize("talk", [drip_comments, drip_text, drip_headers])
def test_closing_the_accelerator_ends_a_call_that_drips(talk: Callable[[Line], None]) -> None:
    with RawServer(talk) as server:
        llm = OpenAICompatibleEngine(server.base_url, "m")
        with Accelerator(llm=llm, shutdown_s=PATIENCE_S) as accelerator:
            running = accelerator.submit(one_generation(), input="x")
            eventually(lambda: server.num_calls == 1)
        assert server.left.wait(PATIENCE_S)
        with pytest.raises(ClosedError):
            running.result(PATIENCE_S)


def _run(accelerator: Accelerator) -> Any:
    return accelerator.run(one_generation(), input="x")


def _stream(accelerator: Accelerator) -> Any:
    return "".join(accelerator.stream(one_generation(), input="x"))


@pytest.mark.slow
@pytest.mark.parametrize("way", [_run, _stream])
def test_a_server_may_take_longer_than_hang_s(server: ChatServer, way: Callable[..., Any]) -> None:
    server.script(Fault("slow", delay_s=4.0))
    llm = OpenAICompatibleEngine(server.base_url, "m")
    with Accelerator(llm=llm, step_timeout_s=1.5) as accelerator:
        assert way(accelerator) == answer_of(4)
    assert server.num_calls == 1
