"""Request bodies and answers of the HTTP engine as pure functions."""

from __future__ import annotations

import json
import math
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message
from rag_accel.engines.llm.remote.wire import (
    SseDecoder,
    StreamAssembler,
    WireFault,
    parse_completion,
    request_body,
)
from rag_accel.errors import ConfigError


def ask(**fields: Any) -> GenerationInput:
    return GenerationInput((Message("system", "s"), Message("user", "u")), **fields)


def body(request: GenerationInput, *, stream: bool = False, usage: bool = True) -> dict[str, Any]:
    return json.loads(request_body(request, "m", stream=stream, stream_usage=usage))


def chunk(text: str | None = None, finish: str | None = None, **fields: Any) -> str:
    delta = {} if text is None else {"content": text}
    return json.dumps({"choices": [{"delta": delta, "finish_reason": finish}], **fields})


def answer(**fields: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "length"}
    return json.dumps({"choices": [choice], **fields}).encode()


def test_the_body_holds_model_messages_and_nothing_that_was_not_asked_for() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert body(ask()) == {"model": "m", "messages": turns}


def test_the_body_holds_limits_stops_and_options() -> None:
    found = body(ask(max_tokens=5, stop=("x",), options={"temperature": 0.5}))
    assert (found["max_tokens"], found["stop"], found["temperature"]) == (5, ["x"], 0.5)


def test_a_stream_asks_for_usage_unless_told_not_to() -> None:
    assert body(ask(), stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(ask(), stream=True, usage=False)


@pytest.mark.parametrize("name", ["model", "messages", "stream", "n", "max_tokens"])
def test_an_option_the_request_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        body(ask(options={name: 1}))


@pytest.mark.parametrize("value", [object(), float("nan"), b"x"])
def test_an_option_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="JSON"):
        body(ask(options={"x": value}))


def test_a_whole_answer_is_read_with_its_counts() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    assert parse_completion(answer(usage=usage)) == GenerationOutput("hi", 3, 4, "length")


@pytest.mark.parametrize(
    "usage", [None, {}, [], {"prompt_tokens": "3"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_missing_or_odd_counts_are_zero(usage: Any) -> None:
    assert parse_completion(answer(usage=usage)) == GenerationOutput("hi", 0, 0, "length")


def test_a_null_content_is_empty_text() -> None:
    data = {"choices": [{"message": {"content": None}, "finish_reason": "tool_calls"}]}
    assert parse_completion(json.dumps(data).encode()) == GenerationOutput("", 0, 0, "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [3]}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{"index": 0, "mess',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_anything_else_is_a_fault_that_shows_the_answer(text: bytes) -> None:
    fault = parse_completion(text)
    assert isinstance(fault, WireFault)
    assert fault.text == text.decode("utf-8", "replace")


def events_of(data: bytes) -> list[str]:
    """Read all events the plain way: whole text, all lines, one after the other."""
    lines = re.split("\r\n|\r|\n", data.decode("utf-8-sig", "replace"))[:-1]
    events: list[str] = []
    values: list[str] = []
    for line in lines:
        if not line and values:
            events.append("\n".join(values))
            values = []
        field, _, value = line.partition(":")
        if field == "data":
            values.append(value[value.startswith(" ") :])
    return events


def cut_events(data: bytes, cuts: list[int]) -> list[str]:
    """Read all events from pieces of the data."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    decoder = SseDecoder()
    return [event for start, end in pairwise(edges) for event in decoder.feed(data[start:end])]


STREAM = (
    ": comment\n\n"
    "data: one\n\n"
    "event: x\r\ndata:two\r\n\r\n"
    "data: three \u2028 \u00e9 \x1c\rdata: four\r\r"
    "\n\ndata\n\ndata: [DONE]\n\n"
    "data: never ended"
)
EVENTS = ["one", "two", "three \u2028 \u00e9 \x1c\nfour", "", "[DONE]"]

PIECES = [
    "data",
    ":",
    " ",
    "x",
    "\r",
    "\n",
    "\r\n",
    "data: y\n\n",
    "data: z\r\r",
    "\ufeff",
    "\u20ac",
]
SPLINTERS = [b"\xef", b"\xbb", b"\xbf", b"\xe2\x82", b"\xac", b"\xff", b"\xf0\x9f", b"\xed\xa0\x80"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "with a BOM"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_events_are_the_same_however_the_bytes_are_cut(mark: bytes, cuts: list[int]) -> None:
    assert cut_events(mark + STREAM.encode(), cuts) == EVENTS


@given(
    pieces=st.lists(st.sampled_from([*map(str.encode, PIECES), *SPLINTERS]), max_size=60),
    cuts=st.lists(st.integers(0, 10_000), max_size=40),
)
def test_any_bytes_cut_anywhere_give_the_events_of_the_whole_text(
    pieces: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(pieces)
    assert cut_events(data, cuts) == events_of(data)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_an_event_is_there_with_the_last_byte_of_its_blank_line(end: str) -> None:
    assert SseDecoder().feed(f"data: [DONE]{end}{end}".encode()) == ["[DONE]"]


def cpu_s(pieces: list[bytes]) -> float:
    """Return the CPU seconds that this thread needs to decode the pieces."""
    decoder, began = SseDecoder(), time.thread_time()
    for piece in pieces:
        decoder.feed(piece)
    return time.thread_time() - began


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"x" * 64, id="one line in small pieces"),
        pytest.param(b"data: " + b"x" * 4096, id="one line in large pieces"),
        pytest.param(b"\xe2\x82", id="one line of broken characters"),
        pytest.param(b"\n" * 256, id="empty lines"),
        pytest.param(b"\r" * 256, id="empty lines, CR only"),
        pytest.param(b"data: x\n" * 32, id="data lines of one event"),
        pytest.param(b"data: x\r" * 32, id="data lines of one event, CR only"),
        pytest.param(b"data\n" * 32, id="data lines without a value"),
        pytest.param(b": ping\n" * 32, id="comments"),
        pytest.param(b"data: x\r\n\r\n" * 16, id="events, CRLF"),
        pytest.param(b"\xef\xbb\xbf" * 64, id="byte order marks"),
    ],
)
def test_four_times_the_bytes_take_about_four_times_as_long(piece: bytes) -> None:
    small_s = large_s = math.inf
    for _ in range(20):  # the least of each counts: a busy machine only ever adds to it
        small_s = min(small_s, cpu_s([piece] * 1000))
        large_s = min(large_s, cpu_s([piece] * 4000))
        if large_s <= 6 * small_s:
            return
    raise AssertionError(f"{small_s:.4f} s, and {large_s:.4f} s for four times as much")


def test_a_stream_joins_to_text_usage_and_finish_reason() -> None:
    stream = StreamAssembler()
    parts = [
        stream.add(chunk("he")),
        stream.add(chunk()),
        stream.add(chunk("llo")),
        stream.add(chunk(finish="length")),
        stream.add(json.dumps({"choices": [], "usage": {"completion_tokens": 2}})),
        stream.add("[DONE]"),
    ]
    assert parts == ["he", "", "llo", "", "", ""]
    assert stream.is_done
    assert stream.output() == GenerationOutput("hello", 0, 2, "length")


def test_a_stream_is_complete_from_its_finish_reason_on() -> None:
    stream = StreamAssembler()
    stream.add(chunk("hi"))
    assert not stream.is_complete
    stream.add(chunk(finish="stop"))
    assert stream.is_complete
    assert not stream.is_done


def test_a_null_delta_adds_nothing() -> None:
    assert StreamAssembler().add('{"choices": [{"delta": null}]}') == ""


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ('{"choices": [{"in', "not a chat chunk"),
        ("[]", "not a chat chunk"),
        ("{}", "not a chat chunk"),
        ('{"error": {"message": "overloaded"}}', "reports an error"),
        ('{"choices": [{"delta": {"content": 3}}]}', "no text"),
    ],
)
def test_a_bad_event_is_a_fault_that_shows_it(event: str, what: str) -> None:
    fault = StreamAssembler().add(event)
    assert isinstance(fault, WireFault)
    assert what in fault.what
    assert fault.text == event
