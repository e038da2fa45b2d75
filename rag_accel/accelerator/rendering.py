"""Fill prompt templates: text as it is, documents as numbered passages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rag_accel.engine_api import Document, GenerationInput, Message, ScoredDocument
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.prompt import split_prompt


def render(template: str, read: Callable[[str], Any]) -> str:
    """Return a template with its placeholders replaced by values."""
    return "".join(
        piece.literal + ("" if piece.value is None else as_text(read(piece.value)))
        for piece in split_prompt(template)
    )


def as_text(value: Any) -> str:
    """Return a value as it stands in a prompt."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if items and all(isinstance(one, Document | ScoredDocument) for one in items):
            return "\n\n".join(f"[{n}] {_passage(one)}" for n, one in enumerate(items, start=1))
        return "\n".join(as_text(one) for one in items)
    return str(value)


def generation_input(primitive: Primitive, read: Callable[[str], Any]) -> GenerationInput:
    """Return the prompt of a generation's first primitive, with what else that one knows.

    A partial prefilling knows the beginning: perhaps only the system prompt, or a part of that.
    """
    messages: list[Message] = []
    system, prompt = primitive.attribute("system"), primitive.attribute("prompt")
    if system is not None:
        messages.append(Message("system", render(system, read)))
    if prompt is not None:
        messages.append(Message("user", render(prompt, read)))
    return GenerationInput(
        tuple(messages), primitive.attribute("stop", ()), primitive.attribute("max_tokens")
    )


def _passage(one: Document | ScoredDocument) -> str:
    return one.text if isinstance(one, Document) else one.document.text
