"""Connections of the HTTP engine: never lost to a cancelled call, never filled up by a server."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
from chat_server import ChatServer
from llm_harness import PATIENCE_S, MakeEngine, error_of, run, work
from raw_server import Line, RawServer

from rag_accel.engine_api import GenerationInput, Message
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.chat_client import ChatCall, ChatClient
from rag_accel.engines.llm.remote.completions import request_body

ANSWER = json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> Callable[[Line], None]:
    """Return what sends this answer, once for each request."""
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"content-length: {len(body)}", "", ""])
    return lambda line: line.send(head.encode() + body)


def call(*, stream: bool) -> ChatCall:
    prompt = GenerationInput((Message("user", "hi"),), max_tokens=2)
    return ChatCall(request_body(prompt, "m", stream=stream, stream_usage=True), stream)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cancelled_at_any_moment_takes_no_connection_away(
    server: ChatServer, stream: bool
) -> None:
    async def main() -> None:
        client = ChatClient(server.base_url, None, RemoteOptions(concurrency=1))
        for num_turns in range(60):
            task = asyncio.create_task(client.complete(call(stream=stream), lambda text: None))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            output = await client.complete(call(stream=stream), lambda text: None)
        assert output.text == "word0 word1"
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_answer_is_read_all_the_same(
    make_engine: MakeEngine, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    with RawServer(answer(pack(ANSWER), f"content-encoding: {coding}")) as server:
        assert run(make_engine(server.base_url), work()).value.text == "hi"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_answer_that_swells_is_too_long_before_it_fills_the_memory(
    make_engine: MakeEngine, stream: bool, layers: int
) -> None:
    body = b"\0" * (64 << 20)
    for _ in range(layers):
        body = gzip.compress(body, compresslevel=1)
    coding = ", ".join(["gzip"] * layers)
    options = RemoteOptions(max_response_bytes=1 << 20)
    with RawServer(answer(body, f"content-encoding: {coding}")) as server:
        engine = make_engine(server.base_url, options=options)
        tracemalloc.start()
        error = error_of(run(engine, work(stream=stream)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "too long" in str(error)
        assert peak_bytes < 16 << 20


def test_cookies_are_not_kept(make_engine: MakeEngine) -> None:
    with RawServer(answer(ANSWER, "set-cookie: a=b", "set-cookie: c=d; path=/")) as server:
        engine = make_engine(server.base_url)
        for id in ("first", "second"):
            assert run(engine, work(id)).kind == "final"
        assert b"cookie" not in server.head.lower()


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_one_even_if_its_text_breaks_off(
    make_engine: MakeEngine, stream: bool
) -> None:
    def talk(line: Line) -> None:
        line.send(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 500\r\n\r\nwrong key")

    with RawServer(talk) as server:
        error = error_of(run(make_engine(server.base_url), work(stream=stream)))
        assert error.status == 401
        assert "wrong key" in str(error.found)
        assert server.num_calls == 1


@pytest.mark.parametrize(
    "location", ["/v1/chat/completions", "http://elsewhere/", "http://[::1/", "javascript:x", ""]
)
def test_a_redirect_is_a_refusal_wherever_it_leads(make_engine: MakeEngine, location: str) -> None:
    with RawServer(answer(b"", f"location: {location}", status="307 Away")) as server:
        error = error_of(run(make_engine(server.base_url), work()))
        assert "base_url" in str(error.hint)
        assert server.num_calls == 1
