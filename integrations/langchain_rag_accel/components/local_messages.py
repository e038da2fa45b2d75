"""LangChain's messages as a local model takes them; what it cannot take is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call

from rag_accel.engine_api import GenerationInput, GenerationOutput, Message, Role, ToolCall
from rag_accel.engines.llm.local.text.stopping import stop_strings
from rag_accel.errors import ConfigError
from rag_accel.kv.prompt_chunks import several_documents

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "ai": "assistant",
    "HumanMessageChunk": "user",
    "AIMessageChunk": "assistant",
    "SystemMessageChunk": "system",
    "tool": "tool",
}
#: options of a call that ask for what a local model cannot do
_REFUSED = ("functions", "function_call", "response_format")
_TOOLS = ("tools", "tool_choice")


def generation_input(
    messages: Sequence[BaseMessage],
    stop: str | Sequence[str] | None,
    max_tokens: int | None,
    options: Mapping[str, Any],
) -> GenerationInput:
    """Return a call as engines take it.

    Raises:
        ConfigError: messages or options that a local model cannot take.
    """
    for name in _REFUSED:
        if options.get(name):
            raise ConfigError(
                "a local model is not bound to a schema",
                where=f"ChatRagAccel, {name}",
                found=name,
                valid="a call without it",
                hint="use bind_tools or with_structured_output",
            )
    turns = tuple(_turn(message, at) for at, message in enumerate(messages))
    known = {name: value for name, value in options.items() if name not in (*_REFUSED, *_TOOLS)}
    tools = tuple(options.get("tools") or ())
    return GenerationInput(turns, stop_strings(stop), max_tokens, known, tools=tools)


def _turn(message: BaseMessage, at: int) -> Message:
    role = _ROLES.get(message.type)
    if role is None:
        raise ConfigError(
            "a local model takes system, human, AI and tool messages of text",
            where=f"ChatRagAccel, message {at + 1}",
            found=f"{message.type} message",
            valid="system | human | ai | tool",
        )
    content = message.content
    if not isinstance(content, str):
        for block in content:
            if isinstance(block, dict) and block.get("type") != "text":
                raise ConfigError(
                    "a local model takes text only",
                    where=f"ChatRagAccel, message {at + 1}",
                    found=f"content of type {block.get('type')!r}",
                    valid="text",
                )
    calls = tuple(
        ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
        for call in getattr(message, "tool_calls", ())
    )
    return Message(role, str(message.text), calls, getattr(message, "tool_call_id", ""))


def calls_of(output: GenerationOutput) -> dict[str, Any]:
    """Return the calls of an answer as fields of an ``AIMessage``.

    LangChain completes an object that it joins from chunks, and takes it for a call. So a malformed
    one is given behind the separator of calls.
    """
    fault = "no JSON object with a name and an object of arguments"
    return {
        "tool_calls": [
            tool_call(name=call.name, args=json.loads(call.arguments), id=call.id)
            for call in output.tool_calls
        ],
        "invalid_tool_calls": [
            invalid_tool_call(name=None, args=f"; {text}", id=None, error=fault)
            for text in output.malformed_calls
        ],
    }


def named_documents(given: Any) -> list[tuple[str, str]]:
    """Return the id and the text of documents that a call names.

    Raises:
        ConfigError: something else than texts and documents.
    """
    found: list[tuple[str, str]] = []
    for at, one in enumerate(several_documents(given, "ChatRagAccel")):
        if isinstance(one, Document):
            found.append((str(one.id or at), one.page_content))
        elif isinstance(one, str):
            found.append((str(at), one))
        else:
            raise ConfigError(
                "documents are texts or LangChain's documents",
                where=f"ChatRagAccel, documents[{at}]",
                found=type(one).__name__,
                valid="str | Document",
            )
    return found
