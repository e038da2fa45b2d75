"""Spans of a request's retrieved documents in its prompts, and the place of texts in a template."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag_accel.engine_api import ChunkSpan, GenerationInput, Message
from rag_accel.errors import ConfigError
from rag_accel.kv.dependency.lines import locate_other_lines, locate_paths
from rag_accel.kv.locate import locate
from rag_accel.kv.segments import TextSpan

#: Shorter documents, in characters, are skipped: reuse would save less than it costs.
LEAST_CHARACTERS = 24
#: Where texts stand in the messages of a prompt that is filled ahead of any question.
PLACE = "{context}"


def several_documents(given: Any, where: str) -> Iterable[Any]:
    """Return the documents that a call names; none of None.

    Args:
        given: several documents.
        where: whose call it is, for the error.

    Raises:
        ConfigError: a single text, a mapping, or nothing that holds several things.
    """
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(
            "documents are named as a list",
            where=f"{where}, documents",
            found=type(given).__name__,
            valid="a list of documents",
        )
    return given


def locate_chunks(
    prompt: GenerationInput,
    documents: Iterable[tuple[str, str]],
    questions: Collection[str] = (),
    *,
    paths_first: bool = False,
) -> GenerationInput:
    """Return a prompt with the spans of the documents in it.

    Args:
        prompt: one that has spans already stays as it is.
        documents: the id and the text of each; of those that are not in the prompt their
            paragraphs, lines and sentences count, the others are ignored.
        questions: the queries that found the documents, without white space around them. A
            document may be the same text; but a question has to be computed.
        paths_first: whether relation paths are looked for, line by line; where there are any, what
            else the documents hold has spans of its own, else documents are found as without.
    """
    if prompt.chunk_spans:
        return prompt
    texts = list(documents)
    if not texts:
        return prompt
    find = _paths_first if paths_first else _texts
    chunk_spans = tuple(
        ChunkSpan(at, span.start, span.stop, span.document)
        for at, message in enumerate(prompt.messages)
        for span in find(message.content, texts, questions)
    )
    return replace(prompt, chunk_spans=chunk_spans) if chunk_spans else prompt


def _texts(
    text: str, documents: list[tuple[str, str]], questions: Collection[str]
) -> Iterable[TextSpan]:
    return locate(text, documents, LEAST_CHARACTERS, never=questions, parts=True)


def _paths_first(
    text: str, documents: list[tuple[str, str]], questions: Collection[str]
) -> Iterable[TextSpan]:
    """Return the spans of paths and of the other parts of documents; without paths, of texts."""
    paths = list(locate_paths(text, documents, questions))
    if not paths:
        return _texts(text, documents, questions)
    return [*paths, *locate_other_lines(text, documents, LEAST_CHARACTERS, questions)]


def message_with_place(messages: Sequence[Message]) -> int:
    """Return which message holds ``{context}``, where the texts of a prompt are to stand.

    Raises:
        ConfigError: there is no such place, or more than one.
    """
    counts = [message.content.count(PLACE) for message in messages]
    if sum(counts) != 1:
        raise ConfigError(
            "the prompt does not say where its texts stand",
            where="prompt",
            found=f"{sum(counts)} times {PLACE}",
            valid=f"messages with {PLACE} once",
        )
    return counts.index(1)
