"""Chat-completion requests and their answers. Pure: JSON to values."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rag_accel.engine_api import GenerationInput, GenerationOutput, PromptUse
from rag_accel.errors import ConfigError
from rag_accel.kv.served_prompts import answered_texts

_NO_COMPLETION = "the answer is not a chat completion"
_RESERVED = frozenset({"model", "messages", "stream", "stream_options", "stop", "max_tokens", "n"})


@dataclass(frozen=True, slots=True)
class CompletionFault:
    """A fault of an answer, the text at fault, and what to do about it."""

    what: str
    text: str
    hint: str = "check that base_url is an OpenAI-compatible server"


def request_body(
    request: GenerationInput,
    model: str,
    *,
    stream: bool,
    stream_usage: bool,
    fields: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the JSON body, with further fields; raises ConfigError on options it cannot carry."""
    if clash := sorted(_RESERVED & set(request.options)):
        raise ConfigError(
            "options that the request sets itself",
            where="GenerationInput.options",
            found=", ".join(clash),
            valid="other OpenAI sampling options",
        )
    body: dict[str, Any] = {
        **request.options,
        **(fields or {}),
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


def parse_completion(body: bytes) -> GenerationOutput | CompletionFault:
    """Read a whole answer, with the use of its prompt where the server tells it."""
    data = _load(body)
    choice = _first_choice(data)
    message = choice.get("message") if choice is not None else None
    content = _text(message)
    if choice is None or content is None:
        return CompletionFault(_NO_COMPLETION, body.decode("utf-8", "replace"))
    if not content and _says_nothing(message):
        what = "the answer has neither a text nor tool calls"
        hint = "look at its finish_reason; a model that thinks first may need a larger max_tokens"
        return CompletionFault(what, body.decode("utf-8", "replace"), hint)
    text = _whole_characters(content, _character_decoder())
    output = _output(text, choice.get("finish_reason"), data.get("usage"))
    said = answered_texts(data.get("kv_transfer_params"))
    return output if said is None else replace(output, use=_use(said, data.get("usage")))


def parse_prompt(body: bytes) -> GenerationOutput | CompletionFault:
    """Read the use of a prompt off an answer whose text does not count; no use if it tells none."""
    data = _load(body)
    if _first_choice(data) is None:
        return CompletionFault(_NO_COMPLETION, body.decode("utf-8", "replace"))
    total, cached = _prompt_counts(data.get("usage"))
    use = PromptUse(computed=max(0, total - cached), from_prefix=cached) if total else None
    return GenerationOutput("", prompt_tokens=total, use=use)


def _prompt_counts(usage: Any) -> tuple[int, int]:
    """Return the tokens of a prompt, and of its beginning that the server had."""
    counts = usage if isinstance(usage, dict) else {}
    details = counts.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return _count(counts.get("prompt_tokens")), cached


def _use(said: Mapping[str, Any], usage: Any) -> PromptUse:
    total, cached = _prompt_counts(usage)
    reused, encoded, between, again = (
        _count(said.get(f"{name}_tokens"))
        for name in ("reused", "encoded", "computed", "recomputed")
    )
    if said.get("exact") is True or said.get("reuse") == "exact":
        cached = max(cached, reused)
        return PromptUse(computed=max(0, total - cached), from_prefix=cached)
    # The server counts all that its connector has computed as cached, too. What it had itself is of
    # an earlier prompt with the same texts, and no more exact.
    own = max(0, cached - reused - encoded - between - again)
    return PromptUse(
        computed=max(0, total - own - reused),
        from_prefix=own,
        from_chunks=reused,
        recomputed=again,
        approximate=own + reused + encoded,
    )


class StreamAssembler:
    """One streamed answer, joined from its events."""

    def __init__(self) -> None:
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
        """Tell whether the text is whole: a finish reason was seen."""
        return self._finish_reason is not None

    def add(self, event: Any) -> str | CompletionFault:
        """Take one event's JSON value and return the text it adds, possibly empty."""
        if not isinstance(event, dict) or not isinstance(event.get("choices"), list):
            return CompletionFault("an event is not a chat chunk", json.dumps(event))
        self._usage = event.get("usage") or self._usage
        choice = _first_choice(event)
        if choice is None:
            return ""
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        text = _text(choice.get("delta") or {})
        if text is None:
            return CompletionFault("an event holds no text", json.dumps(event))
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


def _says_nothing(message: Any) -> bool:
    """Tell whether a message holds nothing in place of a text; an empty text is an answer."""
    return not any(message.get(key) for key in ("tool_calls", "function_call")) and (
        message.get("content") is None
    )


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
