"""A prompt as ranges of tokens: its head, texts that were retrieved, and what stands around them.

Each range is tokenised by itself, so that a text has the same tokens wherever it stands (FusionRAG
section 3.1). The tokens of the whole prompt read as one text may be others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

SegmentKind = Literal["head", "chunk", "glue"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of a prompt.

    Args:
        kind: ``head``, the beginning that texts are encoded behind; ``chunk``, a retrieved text;
            ``glue``, everything else, the question among it: always computed.
        ids: its tokens.
        start: the place of its first token in the prompt.
        document: of a chunk, the id of the document, for reports.
        text: of a chunk, as it stands in the prompt.
    """

    kind: SegmentKind
    ids: tuple[int, ...]
    start: int
    document: str = ""
    text: str = ""

    @property
    def end(self) -> int:
        """Return the place behind its last token."""
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class SegmentedPrompt:
    """The segments of a prompt in their order, without a gap; the last one is glue."""

    segments: tuple[Segment, ...]
    #: the tokens of the whole prompt
    ids: tuple[int, ...] = field(init=False, repr=False, compare=False)
    #: the retrieved texts in their order
    chunks: tuple[Segment, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = tuple(chain.from_iterable(segment.ids for segment in self.segments))
        object.__setattr__(self, "ids", ids)
        chunks = tuple(segment for segment in self.segments if segment.kind == "chunk")
        object.__setattr__(self, "chunks", chunks)

    @property
    def head(self) -> tuple[int, ...]:
        """Return the tokens that texts are encoded behind."""
        first = self.segments[0]
        return first.ids if first.kind == "head" else ()

    @property
    def before_texts(self) -> tuple[int, ...]:
        """Return the tokens that no retrieved text stands before."""
        return self.ids[: self.chunks[0].start] if self.chunks else self.ids


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A retrieved text in a prompt's text: ``text[start:stop]``."""

    start: int
    stop: int
    document: str = ""


def split_prompt(
    text: str,
    head_stop: int,
    spans: Iterable[TextSpan],
    encode: Callable[[str], Sequence[int]],
    least_tokens: int = 1,
) -> SegmentedPrompt | None:
    """Return the segments of a prompt's text; None where it has no chunk, or ends with one.

    Of spans that overlap the longest is a chunk, of equals the first; one that begins within the
    head is none.

    Args:
        text: the whole prompt, as a template rendered it.
        head_stop: where the head ends.
        spans: the retrieved texts that stand in it.
        encode: returns the tokens of a text.
        least_tokens: shorter texts are glue.
    """
    pieces: list[tuple[SegmentKind, tuple[int, ...], str, str]] = []

    def take(kind: SegmentKind, start: int, stop: int, document: str = "") -> None:
        ids = tuple(encode(text[start:stop])) if stop > start else ()
        if kind == "chunk" and len(ids) < least_tokens:
            kind, document = "glue", ""
        if ids:
            pieces.append((kind, ids, document, text[start:stop] if kind == "chunk" else ""))

    take("head", 0, head_stop)
    at = head_stop
    for span in _apart(spans, head_stop, len(text)):
        take("glue", at, span.start)
        take("chunk", span.start, span.stop, span.document)
        at = span.stop
    take("glue", at, len(text))
    if not any(kind == "chunk" for kind, *_ in pieces) or pieces[-1][0] != "glue":
        return None
    segments: list[Segment] = []
    start = 0
    for kind, ids, document, piece in pieces:
        segments.append(Segment(kind, ids, start, document, piece))
        start += len(ids)
    return SegmentedPrompt(tuple(segments))


def _apart(spans: Iterable[TextSpan], first: int, last: int) -> list[TextSpan]:
    """Return spans that do not overlap, in the order of the text; longer ones are kept first."""
    kept: list[TextSpan] = []
    for span in sorted(set(spans), key=lambda one: (one.start - one.stop, one.start)):
        place = bisect_left(kept, span.stop, key=lambda one: one.start)
        is_free = not place or kept[place - 1].stop <= span.start
        if is_free and first <= span.start < span.stop <= last:
            kept.insert(place, span)
    return kept
