"""The bodies of each endpoint, checked: a client sets what it may set, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from rag_accel.errors import ServedRequestError
from rag_accel.serving.served import MESSAGES, TEXT, EmbeddedRole, ServedProgram, chat_input

MOST_TEXTS = 2048
"""Most texts of one request for embeddings."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_CHAT = ("model", "messages", "stream", "stream_options")
_EMBEDDINGS = ("model", "input", "encoding_format", "input_type")
#: OpenAI's keys that no served object is given, though clients always send some of them
_IGNORED = (
    *("temperature", "top_p", "user", "store", "metadata", "parallel_tool_calls", "service_tier"),
    *("safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
)
#: values of keys that ask for nothing; any other value asks for another answer and is refused
_ASK_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ("", []),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "seed", "top_logprobs", "dimensions"), ()
    ),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat's next message, as the inputs of a program.

    ``ignored`` are OpenAI's keys in it that cannot reach the program and change no answer's kind.
    """

    values: dict[str, Any]
    is_stream: bool
    with_usage: bool
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to embed."""

    texts: list[str]
    role: EmbeddedRole
    is_base64: bool
    ignored: tuple[str, ...] = ()


def program_values(body: Mapping[str, Any], inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the inputs of a program that takes exactly these.

    Raises:
        ServedRequestError: another key, one that is missing, or a value of the wrong type.
    """
    _check_keys(body, inputs, required=inputs)
    values = dict(body)
    if MESSAGES in values:
        values[MESSAGES] = _messages(values[MESSAGES])
    if inputs == (TEXT,):
        _require(values[TEXT], str, TEXT, "a text")
    return values


def chat_request(body: Mapping[str, Any], program: ServedProgram, name: str) -> ChatRequest:
    """Return a chat as the inputs of a program.

    Raises:
        ServedRequestError: a key or a value that is not allowed, another model, or a program that
            is no chat.
    """
    body, ignored = _without_ignored(body)
    _check_keys(body, _CHAT, required=("model", "messages"))
    check_model(body["model"], name)
    messages = _messages(body["messages"])
    is_stream = _optional(body, "stream", False, "true or false")
    options = _optional(body, "stream_options", {}, "an object")
    _check_keys(options, ("include_usage",), where="stream_options")
    wanted = chat_input(program)
    if wanted is None:
        raise ServedRequestError(
            "the served object is no chat",
            found=f"inputs {', '.join(program.inputs)}",
            valid="messages, or one input",
            hint="use /invoke or /stream",
        )
    value = messages if wanted == MESSAGES else messages[-1]["content"]
    with_usage = options.get("include_usage") is True
    return ChatRequest({wanted: value}, is_stream, with_usage, ignored)


def embedding_request(body: Mapping[str, Any], name: str) -> EmbeddingRequest:
    """Return the texts of a request for embeddings.

    Raises:
        ServedRequestError: a key or a value that is not allowed, or another model.
    """
    body, ignored = _without_ignored(body)
    _check_keys(body, _EMBEDDINGS, required=("model", "input"))
    check_model(body["model"], name)
    given = body["input"]
    texts: list[Any] = [given] if isinstance(given, str) else given
    is_list = isinstance(given, str | list) and 1 <= len(texts) <= MOST_TEXTS
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise ServedRequestError(
            "these are no texts", where="input", valid=f"a text, or a list of 1 to {MOST_TEXTS}"
        )
    coding = _choose(body, "encoding_format", ("float", "base64"))
    role = _choose(body, "input_type", ("document", "query"))
    return EmbeddingRequest(texts, cast("EmbeddedRole", role), coding == "base64", ignored)


def _without_ignored(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a body of OpenAI's without the keys that are ignored, and these."""
    ignored = tuple(
        key
        for key, value in body.items()
        if key in _IGNORED
        or (key in _ASK_NOTHING and (value is None or value in _ASK_NOTHING[key]))
    )
    return {key: value for key, value in body.items() if key not in ignored}, ignored


def _check_keys(
    body: Mapping[str, Any],
    valid: tuple[str, ...],
    required: tuple[str, ...] = (),
    where: str = "body",
) -> None:
    unknown = sorted(set(body) - set(valid))
    missing = [key for key in required if key not in body]
    if unknown or missing:
        shown = [*(f"{key[:40]!r}" for key in unknown[:8]), *(f"no {key!r}" for key in missing)]
        of_model = any(key in _ASK_NOTHING for key in unknown)
        raise ServedRequestError(
            "the keys are not those that a client sets",
            status=422,
            where=where,
            found=", ".join(shown),
            valid=", ".join(valid),
            hint="a model's options are set where the object is made" if of_model else None,
        )


def check_model(wanted: Any, name: str) -> None:
    """Raise ServedRequestError, status 404, of any model but the served one."""
    if wanted != name:
        raise ServedRequestError(
            "there is no such model",
            status=404,
            where="model",
            found=repr(wanted)[:80],
            valid=name,
        )


def _messages(given: Any) -> list[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise ServedRequestError("these are no messages", valid="a list with at least one")
    messages = [_message(message, number) for number, message in enumerate(given)]
    if messages[-1]["role"] != "user":
        raise ServedRequestError("the last message is not the user's", where=MESSAGES)
    return messages


def _message(given: Any, number: int) -> dict[str, str]:
    where = f"messages[{number}]"
    message = _require(given, dict, where, "an object")
    _check_keys(message, ("role", "content", "name"), ("role", "content"), where)
    role = _ROLES.get(message["role"]) if isinstance(message["role"], str) else None
    if role is None:
        raise ServedRequestError("unknown role", where=where, valid=", ".join(_ROLES))
    content = message["content"]
    if isinstance(content, list):
        content = "".join(_text_part(part, where) for part in content)
    return {"role": role, "content": _require(content, str, f"{where}.content", "a text")}


def _text_part(part: Any, where: str) -> str:
    found = _require(part, dict, where, "a part of a text")
    if found.get("type") != "text":
        raise ServedRequestError("a part that is no text", where=where, valid='"type": "text"')
    return _require(found.get("text"), str, where, "a text")


def _require(value: Any, kind: type, where: str, valid: str) -> Any:
    if not isinstance(value, kind):
        raise ServedRequestError(
            "a value of the wrong type", where=where, found=type(value).__name__, valid=valid
        )
    return value


def _optional(body: Mapping[str, Any], key: str, default: Any, valid: str) -> Any:
    value = body.get(key)
    return default if value is None else _require(value, type(default), key, valid)


def _choose(body: Mapping[str, Any], key: str, valid: tuple[str, str]) -> str:
    value = body.get(key)
    if value is None:
        return valid[0]
    if value not in valid:
        raise ServedRequestError(
            "unknown value", where=key, found=repr(value)[:80], valid=" | ".join(valid)
        )
    return value
