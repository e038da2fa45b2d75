"""Prompts of token ids as ranges: retrieved texts found in ids that a program has made itself.

The ids stay as they are. They are decoded by the tokenizer that made them; a text found there is a
chunk of the tokens that are wholly inside it, so that tokens across a text's edge are computed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rag_accel.kv.locate import locate
from rag_accel.kv.segments import Segment, SegmentedPrompt, SegmentKind, TextSpan

_FIRST_LINE = re.compile(r"\s*\S[^\n]*\n\s*")


def segment_ids(
    ids: Sequence[int],
    tokenizer: Any,
    documents: Iterable[tuple[str, str]],
    asked: Collection[str],
    *,
    least_tokens: int,
    least_characters: int,
) -> SegmentedPrompt | None:
    """Return a prompt of ids by its segments; None where no text is found in it.

    The head, which texts are encoded behind, is the same for prompts that begin alike:

    - Where special tokens mark turns, it is the first turn with the mark that opens the second.
      Where a text or the question is in the first turn, it ends with the last special token before
      both.
    - Else it is the first line up to the first text; where the question is in it, the special
      tokens that the prompt begins with, if any.

    No chunks are the question, a text with a special token in it, the end of the prompt, and the
    texts of a last turn that holds nothing else.

    Args:
        ids: the whole prompt.
        tokenizer: made them; another than a fast one of transformers finds nothing.
        documents: the id and the text of each, as ``locate`` looks for them.
        asked: the queries of the documents' search, without white space around them.
        least_tokens: shorter texts are computed.
        least_characters: shorter texts are not looked for.
    """
    read = read_ids(ids, tokenizer)
    if read is None:
        return None
    spans = locate(read.text, documents, least_characters, never=asked, parts=True)
    chunks = [(tokens, span) for span in spans if (tokens := read.inside(span))]
    chunks = without_question(read, chunks)
    used = [chunk for chunk in chunks if len(chunk[0]) >= least_tokens and chunk[0].stop < len(ids)]
    if not used:
        return None
    first = min(span.start for span in spans)
    return _segmented(ids, head_of(read, first, asked), used, read.text)


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt's text and where each token stands in it.

    Args:
        ids: the tokens.
        text: of all of them.
        starts: the first character of each; tokens that make up a character together share it.
        ends: the place behind its last one.
        marks: places of special tokens among the ids.
        begin: the token that begins every prompt; None if there is none.
    """

    ids: Sequence[int]
    text: str
    starts: Sequence[int]
    ends: Sequence[int]
    marks: Sequence[int]
    begin: int | None

    def inside(self, span: TextSpan) -> range:
        """Return the tokens wholly inside a span; none of one with a special token."""
        tokens = range(bisect_left(self.starts, span.start), bisect_right(self.ends, span.stop))
        mark = bisect_left(self.marks, tokens.start)
        is_marked = mark < len(self.marks) and self.marks[mark] < tokens.stop
        return range(0) if is_marked else tokens

    def before(self, place: int) -> int:
        """Return the number of tokens that end at a place of the text or before."""
        return bisect_right(self.ends, place)


_Chunk = tuple[range, TextSpan]


def read_ids(ids: Sequence[int], tokenizer: Any) -> ReadPrompt | None:
    """Return the text of ids; None where the tokenizer cannot tell where each of them stands."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None
    stream = DecodeStream(skip_special_tokens=False)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    try:
        for token in ids:
            piece = stream.step(backend, token)
            starts.append(at)
            if piece is not None:  # else the next tokens complete a character
                at += len(piece)
                pieces.append(piece)
                ends += [at] * (len(starts) - len(ends))
    except Exception:  # of ids that the tokenizer did not make
        return None
    ends += [at + 1] * (len(starts) - len(ends))
    added = tokenizer.added_tokens_decoder
    special = {id for id, token in added.items() if token.special} | {*tokenizer.all_special_ids}
    marks = [place for place, token in enumerate(ids) if token in special]
    return ReadPrompt(ids, "".join(pieces), starts, ends, marks, tokenizer.bos_token_id)


def head_of(read: ReadPrompt, first: int, asked: Collection[str]) -> int:
    """Return the number of tokens of the head.

    Args:
        read: the prompt.
        first: where its first text begins.
        asked: the queries of the documents' search.
    """
    limit = min(first, _first_place(read.text[:first], asked))
    tokens = read.before(limit)
    marks = [place for place in read.marks if place < tokens]
    opening = next((read.ids[place] for place in marks if read.ids[place] != read.begin), None)
    if opening is not None:
        opened = [place for place in marks if read.ids[place] == opening]
        return (opened[1] if len(opened) > 1 else marks[-1]) + 1
    begun = marks[-1] + 1 if marks else 0
    line = _FIRST_LINE.match(read.text, read.ends[begun - 1] if begun else 0)
    stop = first if line is None else min(first, line.end())
    return read.before(stop) if stop <= limit else begun


def _first_place(text: str, wanted: Collection[str]) -> int:
    """Return the place of the first of some texts as whole words; the end if none is there."""
    looked = (re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) for words in wanted if words)
    return min((found.start() for found in looked if found is not None), default=len(text))


def without_question(read: ReadPrompt, chunks: list[_Chunk]) -> list[_Chunk]:
    """Return the texts without those of a last turn that holds nothing else, but a role's name."""
    stops = [*read.marks, len(read.ids)]
    for at in range(len(stops) - 1, -1, -1):
        turn = range(stops[at - 1] + 1 if at else 0, stops[at])
        inside = [
            chunk for chunk in chunks if turn.start <= chunk[0].start and chunk[0].stop <= turn.stop
        ]
        if len(_rest(read, turn, inside).split()) > 1:
            return chunks
        if inside:
            return [chunk for chunk in chunks if chunk not in inside]
    return chunks


def _rest(read: ReadPrompt, turn: range, inside: Iterable[_Chunk]) -> str:
    if not turn:
        return ""
    at, rest = read.starts[turn.start], ""
    for _, span in inside:
        rest += f"{read.text[at : span.start]} "
        at = span.stop
    return rest + read.text[at : read.ends[turn.stop - 1]]


def _segmented(
    ids: Sequence[int], head: int, chunks: Iterable[_Chunk], text: str
) -> SegmentedPrompt:
    segments: list[Segment] = []
    at = 0

    def take(kind: SegmentKind, stop: int, document: str = "", text: str = "") -> None:
        nonlocal at
        if stop > at:
            segments.append(Segment(kind, tuple(ids[at:stop]), at, document, text))
        at = stop

    take("head", head)
    for tokens, span in chunks:
        take("glue", tokens.start)
        take("chunk", tokens.stop, span.document, text[span.start : span.stop])
    take("glue", len(ids))
    return SegmentedPrompt(tuple(segments))
