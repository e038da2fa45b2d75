"""Filled prompt templates: text as it is, documents as numbered passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rag_accel.engine_api import (
    KINDS,
    ChunkSpan,
    Document,
    GenerationInput,
    Handle,
    Message,
    Role,
    ScoredDocument,
)
from rag_accel.graph.primitives import Primitive
from rag_accel.graph.prompt import split_prompt
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import EngineName


def as_text(value: Any) -> str:
    """Return a value as it stands in a prompt."""
    return _written(value).text


def generation_input(primitive: Primitive, read: Callable[[str], Any]) -> GenerationInput:
    """Return the prompt of a generation's first primitive, with what else that one knows.

    It says where the documents and paths stand that its values hold. A partial prefilling knows the
    beginning: perhaps only the system prompt, or a part of that.
    """
    messages: list[Message] = []
    chunk_spans: list[ChunkSpan] = []
    roles: tuple[tuple[Role, str], ...] = (("system", "system"), ("user", "prompt"))
    for role, attribute in roles:
        template = primitive.attribute(attribute)
        if template is None:
            continue
        filled = _filled(template, read)
        chunk_spans += (ChunkSpan(len(messages), *span) for span in filled.spans)
        messages.append(Message(role, filled.text))
    return GenerationInput(
        tuple(messages),
        primitive.attribute("stop", ()),
        primitive.attribute("max_tokens"),
        chunk_spans=tuple(chunk_spans),
    )


#: where a document's text stands: first character, behind the last one, the document's id
_Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Text:
    """A text, and the spans of documents in it."""

    text: str
    spans: tuple[_Span, ...] = ()


def _filled(template: str, read: Callable[[str], Any]) -> _Text:
    """Return a template with its placeholders replaced by values."""
    pieces: list[_Text] = []
    for piece in split_prompt(template):
        pieces.append(_Text(piece.literal))
        if piece.value is not None:
            pieces.append(_written(read(piece.value)))
    return _joined(pieces)


def _written(value: Any) -> _Text:
    if isinstance(value, str):
        return _Text(value)
    if isinstance(value, list | tuple):
        return _listed(cast("list[Any]", value))
    return _Text(str(value))


def _listed(items: list[Any]) -> _Text:
    """Return documents with their numbers, whatever else as it is, one under the other."""
    pieces: list[_Text] = []
    for number, item in enumerate(items, start=1):
        document = item.document if isinstance(item, ScoredDocument) else item
        if not isinstance(document, Document):
            return _joined([_written(item) for item in items], "\n")
        label = f"[{number}] "
        span = (len(label), len(label) + len(document.text), document.id)
        pieces.append(_Text(label + document.text, (span,)))
    return _joined(pieces, "\n\n")


def _joined(pieces: Sequence[_Text], separator: str = "") -> _Text:
    spans: list[_Span] = []
    at = 0
    for piece in pieces:
        spans += ((at + start, at + stop, document) for start, stop, document in piece.spans)
        at += len(piece.text) + len(separator)
    return _Text(separator.join(piece.text for piece in pieces), tuple(spans))


class Prefilled:
    """Handles of the prompts prefilled for one request until they are resumed, each released once.

    ``begin`` and ``handle`` are called on an engine's thread, the others on the driver's.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        #: prompts that are being prefilled, by output
        self._begun: dict[str, GenerationInput] = {}
        #: prompts that are prefilled, by output
        self._handles: dict[str, tuple[EngineName, Handle]] = {}

    def begin(self, primitive: Primitive, payload: Any) -> None:
        """Remember the prompt that a primitive is about to prefill, if it is one that does."""
        if KINDS[primitive.kind].prefills and primitive.output is not None:
            self._begun[primitive.output] = payload

    def handle(self, primitive: Primitive) -> Handle | None:
        """Return the handle that a primitive resumes, if any."""
        for name in primitive.inputs:
            if name in self._handles:
                return self._handles[name][1]
        return None

    def ended(self, primitive: Primitive, engine: EngineName, handle: Handle | None) -> None:
        """Release the handle a primitive has resumed; keep its own if it has prefilled."""
        self.forget(primitive)
        if handle is None:
            return
        if KINDS[primitive.kind].prefills and primitive.output is not None:
            self._handles[primitive.output] = (engine, handle)
        else:
            self._driver.release(engine, (handle,))

    def forget(self, primitive: Primitive) -> None:
        """Release the handles a primitive was to resume: its engine may have lost them.

        Its next attempt prefills the whole prompt, which it is handed anyway.
        """
        for name in primitive.inputs:
            if name in self._handles:
                self._release(name)

    def prompt(self, primitive: Primitive) -> GenerationInput | None:
        """Return a primitive's prefilled prompt, as the value that later ones read."""
        return self._begun.pop(primitive.output, None) if primitive.output is not None else None

    def close(self) -> None:
        """Release every handle there is."""
        for name in list(self._handles):
            self._release(name)

    def _release(self, name: str) -> None:
        engine, handle = self._handles.pop(name)
        self._driver.release(engine, (handle,))
