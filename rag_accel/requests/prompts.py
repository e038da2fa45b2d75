"""Filled prompt templates: text as it is, documents as numbered passages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rag_accel.engine_api import KINDS, Document, GenerationInput, Handle, Message, ScoredDocument
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.prompt import split_prompt
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineName


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
        return _listed(cast("list[Any]", value))
    return str(value)


def _listed(items: list[Any]) -> str:
    """Return documents with their numbers, whatever else as it is, one under the other."""
    passages: list[str] = []
    for number, one in enumerate(items, start=1):
        document = one.document if isinstance(one, ScoredDocument) else one
        if not isinstance(document, Document):
            return "\n".join(map(as_text, items))
        passages.append(f"[{number}] {document.text}")
    return "\n\n".join(passages)


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


# Keep the prompts that engines have prefilled for one request, until they are resumed.


class Prefilled:
    """Handles on their way from one primitive to the next; each is released once.

    ``begin`` and ``handle`` are called on an engine's thread, the others on the driver's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: prompts that are being prefilled, by output
        self._begun: dict[str, GenerationInput] = {}
        #: prompts that are prefilled, by output
        self._handles: dict[str, tuple[EngineName, Handle]] = {}

    def begin(self, primitive: Primitive, asked: Any) -> None:
        """Remember the prompt that a primitive is about to prefill, if it is one that does."""
        if KINDS[primitive.kind].prefills and primitive.output is not None:
            self._begun[primitive.output] = asked

    def handle(self, primitive: Primitive) -> Handle | None:
        """Return what a primitive resumes, if anything."""
        for name in primitive.inputs:
            if name in self._handles:
                return self._handles[name][1]
        return None

    def ended(self, primitive: Primitive, engine: EngineName, handle: Handle | None) -> None:
        """Release what a primitive has resumed; keep its own handle if it has prefilled."""
        for name in primitive.inputs:
            if name in self._handles:
                self._release(name)
        if handle is None:
            return
        if KINDS[primitive.kind].prefills and primitive.output is not None:
            self._handles[primitive.output] = (engine, handle)
        else:
            self._driver.release(engine, (handle,))

    def prompt(self, primitive: Primitive) -> GenerationInput | None:
        """Return what a primitive has prefilled, as the value that later ones read."""
        return self._begun.pop(primitive.output, None) if primitive.output is not None else None

    def close(self) -> None:
        """Release every handle there is."""
        for name in list(self._handles):
            self._release(name)

    def _release(self, name: str) -> None:
        engine, handle = self._handles.pop(name)
        self._driver.release(engine, (handle,))
