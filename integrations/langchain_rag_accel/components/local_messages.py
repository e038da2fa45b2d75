"""LangChain's messages as a local model takes them; what it cannot take is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage

from rag_accel.engine_api import GenerationInput, Message, Role
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
}
#: options of a call that ask for what a local model cannot do
_TOOLS = ("tools", "tool_choice", "functions", "function_call", "response_format")


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
    for name in _TOOLS:
        if options.get(name):
            raise ConfigError(
                "a local model cannot call tools or follow a schema",
                where=f"ChatRagAccel, {name}",
                found=name,
                valid="a call without it",
                hint="put the choices into the prompt and parse the answer",
            )
    turns = tuple(_turn(message, at) for at, message in enumerate(messages))
    known = {name: value for name, value in options.items() if name not in _TOOLS}
    return GenerationInput(turns, stop_strings(stop), max_tokens, known)


def _turn(message: BaseMessage, at: int) -> Message:
    role = _ROLES.get(message.type)
    if role is None or getattr(message, "tool_calls", None):
        raise ConfigError(
            "a local model takes system, human and AI messages of text",
            where=f"ChatRagAccel, message {at + 1}",
            found=f"{message.type} message" + ("" if role is None else " with tool calls"),
            valid="system | human | ai",
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
    return Message(role, str(message.text))


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
