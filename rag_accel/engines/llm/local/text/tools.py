"""Tools in prompts, and calls of them in answers.

Calls are read as Hermes and Qwen write them, ``<tool_call>{"name": ..., "arguments": {...}}
</tool_call>``, and as Llama 3 does, bare objects with ``name`` and ``parameters``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, ToolCall
from rag_accel.engines.llm.local.text.stopping import StopScanner
from rag_accel.errors import ConfigError

_OPENS, _CLOSES = "<tool_call>", "</tool_call>"
_BARE = re.compile(r"[\s;,]*(?=\{)")
_PROBE = ({"role": "user", "content": "a"},)
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "probe",
        "parameters": {"type": "object", "properties": {}},
    },
}
#: A random id of nine characters, as Mistral's template demands.
_ID_SIZE = 9


def takes_tools(tokenizer: Any, template: str | None) -> bool:
    """Tell whether a tokenizer's chat template, or the one in its place, renders tools."""

    def rendered(tools: list[Any] | None) -> str:
        return tokenizer.apply_chat_template(
            list(_PROBE),
            tools=tools,
            chat_template=template,
            add_generation_prompt=True,
            tokenize=False,
        )

    try:
        return rendered([_PROBE_TOOL]) != rendered(None)
    except Exception:  # there is none, or it refuses one turn of a user
        return False


def chat_turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as ``apply_chat_template`` takes them."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_turn(message, names) for message in messages]


def _turn(message: Message, names: dict[str, str]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id
        turn["name"] = names.get(message.tool_call_id, "")
    return turn


def check_tools(request: GenerationInput, where: str) -> None:
    """Check that tools have a name each, and that each tool message answers an earlier call.

    Raises:
        ConfigError: they do not.
    """
    names = [_name(tool) for tool in request.tools]
    if twice := {str(name) for name in names if name is None or names.count(name) > 1}:
        raise ConfigError(
            "each tool has a name of its own, by which it is called",
            where=f"{where}, tools",
            found=f"several times: {', '.join(sorted(twice))}",
            valid="functions with different names",
        )
    called: set[str] = set()
    for at, message in enumerate(request.messages):
        if message.role == "tool" and message.tool_call_id not in called:
            raise ConfigError(
                "a tool message answers no call of an earlier message",
                where=f"{where}, message {at + 1}",
                found=f"tool_call_id {message.tool_call_id!r}",
                valid=" | ".join(map(repr, sorted(called))) or "none, as there is no call",
                hint="keep the message with the call where you shorten a conversation",
            )
        called.update(call.id for call in message.tool_calls)


def _name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def read_calls(output: GenerationOutput) -> GenerationOutput:
    """Return a whole answer with the calls of tools in it.

    Its text is what stands before the first call, or all of it where no call can be read.
    """
    before, *tagged = output.text.split(_OPENS)
    pieces = [piece.partition(_CLOSES)[0].strip() for piece in tagged]
    if not tagged:
        before, pieces = "", list(_bare(output.text))
    read = [(piece, _call(piece)) for piece in pieces]
    calls = tuple(call for _, call in read if call is not None)
    malformed = tuple(piece for piece, call in read if call is None)
    text = before if calls else output.text
    return replace(output, text=text, tool_calls=calls, malformed_calls=malformed)


def _bare(text: str) -> Iterator[str]:
    """Yield the objects that a text begins with, as long as they look like calls."""
    at = 0
    while opening := _BARE.match(text, at):
        start = opening.end()
        try:
            _, at = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            at = len(text)
        piece = text[start:at]
        if '"name"' not in piece or not ('"arguments"' in piece or '"parameters"' in piece):
            return
        yield piece


def _call(piece: str) -> ToolCall | None:
    try:
        found = json.loads(piece)
    except (ValueError, RecursionError):
        return None
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str):
        return None
    given = found.get("arguments", found.get("parameters", {}))
    if not isinstance(given, dict):
        return None
    return ToolCall(uuid4().hex[:_ID_SIZE], name, json.dumps(given, ensure_ascii=False))


class AnswerPieces:
    """Pieces of a streamed answer as a caller sees them: its text up to where a call may begin."""

    def __init__(self) -> None:
        self._scanner = StopScanner((_OPENS,))
        self._text = ""
        self._num_scanned = 0
        self._num_given = 0

    def of(self, piece: str | GenerationOutput) -> Iterator[str | GenerationOutput]:
        """Yield the text that is certain by now; with the output, the rest and its calls."""
        output = None if isinstance(piece, str) else read_calls(piece)
        text = self._add(str(piece)) if output is None else output.text[self._num_given :]
        self._num_given += len(text)
        if text:
            yield text
        if output is not None:
            yield output

    def _add(self, piece: str) -> str:
        self._text += piece
        begun = self._text.lstrip()
        if not begun or begun[0] == "{":  # may be the object of a call
            return ""
        new, self._num_scanned = self._text[self._num_scanned :], len(self._text)
        return self._scanner.add(new)
