"""Prompts with retrieved texts as a model server is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rag_accel.engine_api import ChunkSpan, GenerationInput
from rag_accel.kv.keys import KvRecipe
from rag_accel.kv.reuse_request import (
    ENTRY,
    MOST_CHARACTERS,
    MOST_TEXTS,
    ReuseRequest,
    ServedReuse,
    question_digest,
)


def reuse_request_of(
    prompt: GenerationInput,
    reuse: ServedReuse,
    *,
    namespace: str = "",
    ratio: float = 0.15,
    recipe: KvRecipe = "neighbours",
) -> ReuseRequest | None:
    """Return what a server is told of a prompt's texts; None of one without any.

    The head ends where that of a local engine does: before the first message that is not the
    system's, or that holds a text.

    Args:
        prompt: its ``chunk_spans`` are the texts; of those that overlap the first counts.
        reuse: the way of reuse.
        namespace: tenant.
        ratio: of ``fused``, the share of the texts' tokens that are computed again.
        recipe: which state a text gets.
    """
    spans = _apart(prompt)
    texts = tuple(prompt.messages[at.message].content[at.start : at.stop] for at in spans)
    if not texts or sum(map(len, texts)) > MOST_CHARACTERS:
        return None
    question = ""
    if reuse == "fused":
        question = question_digest((turn.role, turn.content) for turn in prompt.messages)
    return ReuseRequest(
        reuse=reuse,
        texts=texts,
        before=_before(prompt, spans[0]),
        namespace=namespace,
        ratio=ratio,
        question=question,
        recipe=recipe,
    )


def _apart(prompt: GenerationInput) -> list[ChunkSpan]:
    """Return the spans in the order of the prompt, without those that overlap one before."""
    found: list[ChunkSpan] = []
    for span in sorted(prompt.chunk_spans, key=lambda span: (span.message, span.start)):
        if not 0 <= span.message < len(prompt.messages):
            continue
        if not 0 <= span.start < span.stop <= len(prompt.messages[span.message].content):
            continue
        if found and found[-1].message == span.message and span.start < found[-1].stop:
            continue
        found.append(span)
    return _without_question(prompt, found)[:MOST_TEXTS]


def _without_question(prompt: GenerationInput, spans: list[ChunkSpan]) -> list[ChunkSpan]:
    """Return the spans without those of a last message that holds nothing else."""
    last = len(prompt.messages) - 1
    inside = [span for span in spans if span.message == last]
    content = prompt.messages[last].content if inside else ""
    at, rest = 0, ""
    for span in inside:
        rest += content[at : span.start]
        at = span.stop
    if not inside or (rest + content[at:]).strip():
        return spans
    return [span for span in spans if span.message != last]


def _before(prompt: GenerationInput, first: ChunkSpan) -> str:
    """Return the text between the head and the first text, as far as it is of one message."""
    at = next(
        at
        for at, turn in enumerate(prompt.messages)
        if turn.role != "system" or at == first.message
    )
    content = prompt.messages[at].content
    return content[: first.start] if at == first.message else content


def answered_texts(params: object) -> Mapping[str, Any] | None:
    """Return what an answer's ``kv_transfer_params`` say of its texts; None if they say nothing."""
    said = cast("Mapping[str, Any]", params).get(ENTRY) if isinstance(params, Mapping) else None
    return cast("Mapping[str, Any]", said) if isinstance(said, Mapping) else None


#: What an answer says of its texts, in tokens of its prompt.
_COUNTS = ("reused_tokens", "encoded_tokens", "recomputed_tokens")


def served_report(
    reuse: str, said: Mapping[str, Any], cached_tokens: int | None = None
) -> dict[str, Any]:
    """Return how a server computed the texts of an answer's prompt.

    ``mode`` is the way that was asked for. ``reused_tokens`` were loaded, ``encoded_tokens``
    encoded behind the head for this prompt, ``recomputed_tokens`` of them computed again where
    they stand. ``cached_tokens``, where the server's usage has them, are those that were loaded and
    those that it had from an earlier prompt with the same texts, as approximate as that was.
    ``refused`` says why no text was reused, and then ``exact`` that the server computed the prompt
    as a whole.
    """
    report: dict[str, Any] = {"mode": reuse, **{name: _count(said.get(name)) for name in _COUNTS}}
    if cached_tokens is not None:
        report["cached_tokens"] = cached_tokens
    if "refused" in said:
        report["refused"] = str(said["refused"])[:200]
        return {**report, "exact": said.get("exact") is True and not cached_tokens}
    return {**report, "exact": reuse == "exact"}


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0
