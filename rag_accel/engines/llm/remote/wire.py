"""Write chat-completion requests and read their answers, client side. Pure: bytes to values."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import GenerationInput, GenerationOutput
from rag_accel.errors import ConfigError

_RESERVED = frozenset({"model", "messages", "stream", "stream_options", "stop", "max_tokens", "n"})
_END = "[DONE]"


@dataclass(frozen=True, slots=True)
class WireFault:
    """Say what is wrong with an answer, and show the text that is."""

    what: str
    text: str


def request_body(
    request: GenerationInput, model: str, *, stream: bool, stream_usage: bool
) -> bytes:
    """Return the JSON body; raises ConfigError on options it cannot carry."""
    if clash := sorted(_RESERVED & set(request.options)):
        raise ConfigError(
            "options that the request sets itself",
            where="GenerationInput.options",
            found=", ".join(clash),
            valid="other OpenAI sampling options",
        )
    body: dict[str, Any] = {
        **request.options,
        "model": model,
        "messages": [{"role": turn.role, "content": turn.content} for turn in request.messages],
    }
    if request.stop:
        body["stop"] = list(request.stop)
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if stream:
        body["stream"] = True
        if stream_usage:
            body["stream_options"] = {"include_usage": True}
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as exc:
        raise ConfigError(
            "an option that JSON cannot hold",
            where="GenerationInput.options",
            found=str(exc),
            valid="numbers, texts, lists and objects",
        ) from exc


def parse_completion(body: bytes) -> GenerationOutput | WireFault:
    """Read a whole answer."""
    data = _load(body)
    choice = _first_choice(data)
    message = choice.get("message") if choice is not None else None
    content = _text(message)
    if choice is None or content is None:
        what = "the answer is not a chat completion"
        return WireFault(what, body.decode("utf-8", "replace"))
    text = _whole_characters(content, _character_decoder())
    return _output(text, choice.get("finish_reason"), data.get("usage"))


class SseDecoder:
    """Split the bytes of a stream of server-sent events into the data of each event.

    The text is UTF-8, with or without a byte order mark, and its lines end with CR, LF or both, as
    the standard says; splitting as Python does would also cut at characters such as U+2028, which
    JSON may hold unescaped. The time is linear in the bytes, however they are cut.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._ended_with_cr = False
        self._line: list[str] = []
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Take bytes and return the events they complete."""
        first, *others = self._split(self._text.decode(chunk))
        self._line.append(first)
        events: list[str] = []
        for start in others:
            self._end_line(events)
            self._line = [start]
        return events

    def _split(self, text: str) -> list[str]:
        """Split at ends of lines; an LF right after the CR of the text before ends no other."""
        if not text:
            return [""]
        new = text.removeprefix("\n") if self._ended_with_cr else text
        self._ended_with_cr = text.endswith("\r")
        return new.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def _end_line(self, events: list[str]) -> None:
        line = "".join(self._line)
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        elif not line and self._data:
            events.append("\n".join(self._data))
            self._data = []


class StreamAssembler:
    """Join the events of one streamed answer.

    Attributes:
        has_begun: whether any event came.
        is_done: whether the end mark came.
    """

    def __init__(self) -> None:
        self.is_done = False
        self.has_begun = False
        self._texts: list[str] = []
        self._characters = _character_decoder()
        self._finish_reason: str | None = None
        self._usage: Any = None

    @property
    def has_text(self) -> bool:
        """Tell whether any text arrived."""
        return bool(self._texts)

    @property
    def is_complete(self) -> bool:
        """Tell whether the text is whole: the end mark or a finish reason was seen."""
        return self.is_done or self._finish_reason is not None

    def add(self, event: str) -> str | WireFault:
        """Take one event's data and return the text it adds, possibly empty."""
        self.has_begun = True
        mark = event.strip()
        if mark in ("", _END):
            self.is_done = mark == _END
            return ""
        data = _load(event)
        if not isinstance(data, dict) or not isinstance(data.get("choices"), list):
            reported = isinstance(data, dict) and "error" in data
            what = "the stream reports an error" if reported else "an event is not a chat chunk"
            return WireFault(what, event)
        self._usage = data.get("usage") or self._usage
        choice = _first_choice(data)
        if choice is None:
            return ""
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        text = _text(choice.get("delta") or {})
        if text is None:
            return WireFault("an event holds no text", event)
        text = _whole_characters(text, self._characters)
        if text:
            self._texts.append(text)
        return text

    def output(self) -> GenerationOutput:
        """Return the finished completion."""
        return _output("".join(self._texts), self._finish_reason, self._usage)


def _load(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _first_choice(data: Any) -> Mapping[str, Any] | None:
    choices = data.get("choices") if isinstance(data, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _text(message: Any) -> str | None:
    """Return the text of a message or delta; a missing or null one (a tool call) is empty."""
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    if content is None:
        return ""
    return content if isinstance(content, str) else None


def _character_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-16-le")("replace")


def _whole_characters(text: str, decoder: codecs.IncrementalDecoder) -> str:
    """Join the halves of a character that JSON holds apart; a lone one could not be encoded.

    A half at the end stays in the decoder until the other one comes.
    """
    return decoder.decode(text.encode("utf-16-le", "surrogatepass"))


def _output(text: str, finish_reason: Any, usage: Any) -> GenerationOutput:
    counts = usage if isinstance(usage, dict) else {}
    return GenerationOutput(
        text=text,
        prompt_tokens=_count(counts.get("prompt_tokens")),
        completion_tokens=_count(counts.get("completion_tokens")),
        finish_reason=finish_reason if isinstance(finish_reason, str) else "stop",
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
