"""A prompt as ranges of tokens: its head, what was retrieved, and what stands around it.

Each range is tokenised by itself, so that a text has the same tokens wherever it stands (FusionRAG
section 3.1). The tokens of the whole prompt read as one text may be others.

    head  chunk  glue  tree  glue      texts and relation paths of one prompt
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from rag_accel.kv.dependency.positions import TreePositions, tree_positions
from rag_accel.kv.dependency.tree import DependencyTree

SegmentKind = Literal["head", "chunk", "tree", "glue"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of a prompt.

    Args:
        kind: ``head``, the beginning that texts and paths are encoded behind; ``chunk``, a
            retrieved text; ``tree``, relation paths; ``glue``, everything else, the question among
            it: always computed.
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
class PlacedTree:
    """The relation paths of a prompt.

    Args:
        tree: of the paths; tokens see the prompt's head, and their own path alone.
        positions: of its tokens in the prompt, and of the first token behind it.
    """

    tree: DependencyTree
    positions: TreePositions


@dataclass(frozen=True, slots=True)
class SegmentedPrompt:
    """The segments of a prompt in their order, without a gap; the last one is glue.

    Args:
        segments: at most one of them a tree.
        paths: of that one; None where there is none.
        documents: retrieved texts next to the tree that are no chunks.
    """

    segments: tuple[Segment, ...]
    paths: PlacedTree | None = None
    documents: tuple[str, ...] = ()
    #: the tokens of the whole prompt
    ids: tuple[int, ...] = field(init=False, repr=False, compare=False)
    #: the retrieved texts in their order
    chunks: tuple[Segment, ...] = field(init=False, repr=False, compare=False)
    #: the places of the tree's tokens
    slots: range = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = tuple(chain.from_iterable(segment.ids for segment in self.segments))
        object.__setattr__(self, "ids", ids)
        chunks = tuple(segment for segment in self.segments if segment.kind == "chunk")
        object.__setattr__(self, "chunks", chunks)
        trees = (range(part.start, part.end) for part in self.segments if part.kind == "tree")
        object.__setattr__(self, "slots", next(trees, range(0)))

    @property
    def head(self) -> tuple[int, ...]:
        """Return the tokens that texts and paths are encoded behind."""
        first = self.segments[0]
        return first.ids if first.kind == "head" else ()

    @property
    def task(self) -> tuple[int, ...]:
        """Return the tokens behind the tree."""
        return self.ids[self.slots.stop :]

    @property
    def tree(self) -> DependencyTree:
        """Return the tree of a prompt that has one."""
        assert self.paths is not None
        return self.paths.tree

    @property
    def positions(self) -> TreePositions:
        """Return where the tree stands in a prompt that has one."""
        assert self.paths is not None
        return self.paths.positions

    @property
    def before_texts(self) -> tuple[int, ...]:
        """Return the tokens that are computed as in any prompt that begins alike."""
        parts = (part.start for part in self.segments if part.kind in ("chunk", "tree"))
        return self.ids[: next(parts, len(self.ids))]

    def without_chunks(self) -> SegmentedPrompt:
        """Return the same prompt with its texts as glue, which is computed."""
        segments = (
            replace(part, kind="glue") if part.kind == "chunk" else part for part in self.segments
        )
        texts = (part.text for part in self.chunks)
        return replace(self, segments=tuple(segments), documents=(*self.documents, *texts))


def prompt_around(
    head: tuple[int, ...],
    tree: DependencyTree,
    task: tuple[int, ...],
    positions: TreePositions,
    documents: tuple[str, ...] = (),
) -> SegmentedPrompt:
    """Return a prompt of a head, a tree right behind it, and the tokens behind the tree."""
    paths = tuple(tree.ids.tolist())
    parts: list[tuple[SegmentKind, tuple[int, ...]]] = [("head", head)] if head else []
    parts += [("tree", paths), ("glue", task)]
    starts = {"head": 0, "tree": len(head), "glue": len(head) + len(paths)}
    segments = tuple(Segment(kind, ids, starts[kind]) for kind, ids in parts)
    return SegmentedPrompt(segments, PlacedTree(tree, positions), documents)


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
    paths: tuple[TextSpan, DependencyTree] | None = None,
) -> SegmentedPrompt | None:
    """Return the segments of a prompt's text; None where it has no chunk, or does not end in glue.

    Of spans that overlap the longest is a chunk, of equals the first; one that begins within the
    head is none.

    Args:
        text: the whole prompt, as a template rendered it.
        head_stop: where the head ends.
        spans: the retrieved texts that stand in it.
        encode: returns the tokens of a text.
        least_tokens: shorter texts are glue.
        paths: where relation paths stand, which no span overlaps, and their tree.
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
    parts = _apart(spans, head_stop, len(text))
    if paths is not None:
        parts = sorted([*parts, paths[0]], key=lambda part: part.start)
    for span in parts:
        take("glue", at, span.start)
        if paths is not None and span is paths[0]:
            pieces.append(("tree", tuple(paths[1].ids.tolist()), "", ""))
        else:
            take("chunk", span.start, span.stop, span.document)
        at = span.stop
    take("glue", at, len(text))
    if not any(kind == "chunk" for kind, *_ in pieces) or pieces[-1][0] != "glue":
        return None
    segments: list[Segment] = []
    placed, start = None, 0
    for kind, ids, document, piece in pieces:
        if kind == "tree" and paths is not None:
            placed = PlacedTree(paths[1], tree_positions(paths[1], begin=start))
        segments.append(Segment(kind, ids, start, document, piece))
        start += len(ids)
    return SegmentedPrompt(tuple(segments), placed)


def _apart(spans: Iterable[TextSpan], first: int, last: int) -> list[TextSpan]:
    """Return spans that do not overlap, in the order of the text; longer ones are kept first."""
    kept: list[TextSpan] = []
    for span in sorted(set(spans), key=lambda one: (one.start - one.stop, one.start)):
        place = bisect_left(kept, span.stop, key=lambda one: one.start)
        is_free = not place or kept[place - 1].stop <= span.start
        if is_free and first <= span.start < span.stop <= last:
            kept.insert(place, span)
    return kept
