"""The HTTP engine and streams that are none, that say too much, or that break at their end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from llm_harness import MakeEngine, error_of, finish, run, work
from raw_server import CLOSED_BY_END, Line, RawServer

from rag_accel.engine_api import GenerationOutput

COMPLETION = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def said(text: str | None = None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    return event({"choices": [{"delta": delta, "finish_reason": finish}]})


DONE = event(b"[DONE]")


class Pieces(httpx2.AsyncByteStream):
    """Be a body that comes in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class Answers:
    """Give every call the same answer, and count the calls."""

    def __init__(self, *pieces: bytes, **parts: Any) -> None:
        self.num_calls = 0
        self._pieces, self._parts = pieces, parts

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.num_calls += 1
        return httpx2.Response(200, stream=Pieces(*self._pieces), **self._parts)

    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/event-stream"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_whole_answer_to_a_request_for_a_stream_is_taken_as_it_is(
    make_engine: MakeEngine, kind: str, indent: int | None
) -> None:
    body = json.dumps(COMPLETION, indent=indent).encode()
    answers = Answers(body[:20], body[20:], headers={"content-type": kind})
    engine = make_engine(transport=answers.transport())
    engine.submit([work(stream=True)])
    partial, final = finish(engine, "a")
    assert (partial.kind, partial.value) == ("partial", "hi")
    assert final.value == GenerationOutput("hi", 3, 1, "stop")
    assert answers.num_calls == 1


@pytest.mark.parametrize(
    "body",
    [b'{"error": {"message": "no"}}', b"<html>log in</html>", b": ping\n\n", b"event: x\n\n"],
)
def test_an_answer_that_is_neither_a_stream_nor_whole_is_not_asked_for_again(
    make_engine: MakeEngine, body: bytes
) -> None:
    answers = Answers(body)
    error = error_of(run(make_engine(transport=answers.transport()), work(stream=True)))
    assert "not a chat completion" in str(error)
    assert body.decode().split()[0] in str(error.found)
    assert answers.num_calls == 1


def test_an_empty_stream_is_asked_for_again(make_engine: MakeEngine) -> None:
    answers = Answers()
    error = error_of(run(make_engine(transport=answers.transport()), work(stream=True)))
    assert "broke before the answer was complete" in str(error)
    assert answers.num_calls == 4


@pytest.mark.parametrize("after", [DONE, event(b"rubbish"), said("more"), b"\xff\xff\n\n"])
def test_what_follows_the_end_mark_counts_for_nothing_however_it_is_cut(
    make_engine: MakeEngine, after: bytes
) -> None:
    whole = said("hi") + DONE + after
    for cut in (0, len(whole) - len(after), len(whole) - len(after) + 1):
        answers = Answers(whole[:cut], whole[cut:])
        engine = make_engine(transport=answers.transport())
        assert run(engine, work(stream=True)).value == GenerationOutput("hi")


@pytest.mark.parametrize("bad", [b"data:\n\n", b"data: {\n\n", b"data: \xff\n\n", b"data: 1\n\n"])
def test_an_event_that_is_no_chunk_is_a_named_error(make_engine: MakeEngine, bad: bytes) -> None:
    answers = Answers(said("hi"), bad, DONE)
    error = error_of(run(make_engine(transport=answers.transport()), work(stream=True)))
    assert "not a chat chunk" in str(error)
    assert answers.num_calls == 1


def test_an_error_that_the_stream_reports_is_shown(make_engine: MakeEngine) -> None:
    answers = Answers(said("hi"), event({"error": {"message": "overloaded"}}), DONE)
    error = error_of(run(make_engine(transport=answers.transport()), work(stream=True)))
    assert "the stream reports an error" in str(error)
    assert "overloaded" in str(error.found)


def reset(line: Line) -> None:
    line.send(CLOSED_BY_END + said("hi") + said(finish="stop"))
    line.reset()


def end_without_the_last_chunk(line: Line) -> None:
    body = said("hi") + said(finish="stop")
    line.send(CHUNKED + b"%x\r\n%b\r\n" % (len(body), body))


def send_a_bad_chunk(line: Line) -> None:
    end_without_the_last_chunk(line)
    line.send(b"rubbish\r\n")


@pytest.mark.parametrize("talk", [reset, end_without_the_last_chunk, send_a_bad_chunk])
def test_a_connection_that_breaks_after_the_finish_reason_harms_nothing(
    make_engine: MakeEngine, talk: Callable[[Line], None]
) -> None:
    with RawServer(talk) as server:
        output = run(make_engine(server.base_url), work(stream=True))
        assert output.value == GenerationOutput("hi")
        assert server.num_calls == 1


def test_a_character_that_is_cut_between_two_events_is_put_together(
    make_engine: MakeEngine,
) -> None:
    answers = Answers(said("\ud83d"), said("\ude00!"), DONE)
    engine = make_engine(transport=answers.transport())
    engine.submit([work(stream=True)])
    outputs = finish(engine, "a")
    assert "".join(output.value for output in outputs[:-1]) == "\U0001f600!"
    assert outputs[-1].value.text == "\U0001f600!"


@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_is_replaced_so_that_the_text_can_be_encoded(
    make_engine: MakeEngine, stream: bool
) -> None:
    whole = {"choices": [{"message": {"content": "a\udc00b\ud800c"}, "finish_reason": "stop"}]}
    body = said("a\udc00b\ud800c", "stop") + DONE if stream else json.dumps(whole).encode()
    engine = make_engine(transport=Answers(body).transport())
    engine.submit([work(stream=stream)])
    outputs = finish(engine, "a")
    assert outputs[-1].value.text == "a\ufffdb\ufffdc"
    if stream:
        assert "".join(output.value for output in outputs[:-1]) == "a\ufffdb\ufffdc"
