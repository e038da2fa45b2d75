"""Request bodies and answers of the HTTP engine as pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message
from rag_accel.engines.llm.remote.completions import (
    CompletionFault,
    StreamAssembler,
    parse_completion,
    request_body,
)
from rag_accel.errors import ConfigError


def ask(**fields: Any) -> GenerationInput:
    return GenerationInput((Message("system", "s"), Message("user", "u")), **fields)


def body(request: GenerationInput, *, stream: bool = False, usage: bool = True) -> dict[str, Any]:
    return json.loads(request_body(request, "m", stream=stream, stream_usage=usage))


def chunk(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


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


def message(**parts: Any) -> bytes:
    """Return an answer with a message."""
    return json.dumps({"choices": [{"message": parts, "finish_reason": "end"}]}).encode()


@pytest.mark.parametrize("key", ["tool_calls", "function_call"])
def test_a_null_content_beside_tool_calls_is_empty_text(key: str) -> None:
    text = message(content=None, **{key: [{"id": "1"}]})
    assert parse_completion(text) == GenerationOutput("", 0, 0, "end")


def test_an_empty_content_is_empty_text() -> None:
    assert parse_completion(message(content="")) == GenerationOutput("", 0, 0, "end")


@pytest.mark.parametrize(
    "parts", [{}, {"content": None}, {"content": None, "tool_calls": []}, {"refusal": "no"}]
)
def test_an_answer_without_text_and_tool_calls_is_a_fault(parts: dict[str, Any]) -> None:
    fault = parse_completion(message(**parts))
    assert isinstance(fault, CompletionFault)
    assert fault.what == "the answer has neither a text nor tool calls"
    assert "max_tokens" in fault.hint
    assert fault.text == message(**parts).decode()


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
    assert isinstance(fault, CompletionFault)
    assert fault.text == text.decode("utf-8", "replace")


def test_a_stream_joins_to_text_usage_and_finish_reason() -> None:
    stream = StreamAssembler()
    parts = [
        stream.add(chunk("he")),
        stream.add(chunk()),
        stream.add(chunk("llo")),
        stream.add(chunk(finish="length")),
        stream.add({"choices": [], "usage": {"completion_tokens": 2}}),
    ]
    assert parts == ["he", "", "llo", "", ""]
    assert stream.output() == GenerationOutput("hello", 0, 2, "length")


def test_a_stream_is_complete_from_its_finish_reason_on() -> None:
    stream = StreamAssembler()
    stream.add(chunk("hi"))
    assert not stream.is_complete
    stream.add(chunk(finish="stop"))
    assert stream.is_complete


def test_a_null_delta_adds_nothing() -> None:
    assert StreamAssembler().add({"choices": [{"delta": None}]}) == ""


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (None, "not a chat chunk"),
        ([], "not a chat chunk"),
        ({}, "not a chat chunk"),
        ({"choices": [{"delta": {"content": 3}}]}, "no text"),
    ],
)
def test_a_bad_event_is_a_fault_that_shows_it(event: Any, what: str) -> None:
    fault = StreamAssembler().add(event)
    assert isinstance(fault, CompletionFault)
    assert what in fault.what
    assert fault.text == json.dumps(event)
