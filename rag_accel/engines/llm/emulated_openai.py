"""Translate between the OpenAI chat-completion JSON and the generation types, server side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, Role
from rag_accel.errors import ConfigError

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_NOT_OPTIONS = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "stop",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "user",
    }
)


@dataclass(frozen=True, slots=True)
class ServedCall:
    """Hold one parsed request body."""

    request: GenerationInput
    model: str
    stream: bool
    include_usage: bool


def parse_call(body: bytes) -> ServedCall:
    """Read a chat-completion body; raises ConfigError saying what is wrong with it."""
    try:
        data = json.loads(body)
    except ValueError:
        raise _bad("the body", "no JSON", "a JSON object") from None
    if not isinstance(data, dict):
        raise _bad("the body", type(data).__name__, "a JSON object")
    if data.get("n", 1) != 1:
        raise _bad("n", data["n"], "1")
    return ServedCall(
        request=GenerationInput(
            messages=_messages(data.get("messages")),
            stop=_stop(data.get("stop")),
            max_tokens=_limit(data),
            options={key: data[key] for key in data if key not in _NOT_OPTIONS},
        ),
        model=str(data.get("model", "")),
        stream=bool(data.get("stream", False)),
        include_usage=_wants_usage(data.get("stream_options")),
    )


def completion_json(id: str, model: str, output: GenerationOutput) -> dict[str, Any]:
    """Return the body of a whole answer."""
    message = {"role": "assistant", "content": output.text}
    choice = {"index": 0, "message": message, "finish_reason": output.finish_reason}
    return {
        "id": id,
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": usage_json(output),
    }


def chunk_json(
    id: str, model: str, delta: Mapping[str, str], finish_reason: str | None = None
) -> dict[str, Any]:
    """Return one event of a streamed answer."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
    return {
        "id": id,
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": [choice],
    }


def usage_chunk_json(id: str, model: str, output: GenerationOutput) -> dict[str, Any]:
    """Return the event that carries the token counts: no choices, before the end mark."""
    return {**chunk_json(id, model, {}), "choices": [], "usage": usage_json(output)}


def usage_json(output: GenerationOutput) -> dict[str, int]:
    """Return the token counts by their OpenAI names."""
    return {
        "prompt_tokens": output.prompt_tokens,
        "completion_tokens": output.completion_tokens,
        "total_tokens": output.prompt_tokens + output.completion_tokens,
    }


def error_json(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """Return an error body."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _messages(value: Any) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise _bad("messages", type(value).__name__, "a non-empty list")
    return tuple(_message(turn) for turn in value)


def _message(turn: Any) -> Message:
    role = turn.get("role") if isinstance(turn, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad("messages[].role", repr(role), ", ".join(_ROLES))
    return Message(_ROLES[role], _content(turn.get("content")))


def _content(value: Any) -> str:
    parts = [{"text": value}] if isinstance(value, str) else value
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else [None]:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise _bad("messages[].content", type(value).__name__, "text or a list of text parts")
        texts.append(text)
    return "".join(texts)


def _stop(value: Any) -> tuple[str, ...]:
    marks = [value] if isinstance(value, str) else value or []
    if not isinstance(marks, list) or not all(isinstance(mark, str) for mark in marks):
        raise _bad("stop", repr(value), "text or a list of texts")
    return tuple(marks)


def _wants_usage(value: Any) -> bool:
    if value is not None and not isinstance(value, dict):
        raise _bad("stream_options", type(value).__name__, "an object")
    return bool((value or {}).get("include_usage", False))


def _limit(data: Mapping[str, Any]) -> int | None:
    value = data.get("max_completion_tokens", data.get("max_tokens"))
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _bad("max_tokens", repr(value), "an integer")
    return value


def _bad(where: str, found: object, valid: str) -> ConfigError:
    return ConfigError("bad chat completion request", where=where, found=found, valid=valid)
