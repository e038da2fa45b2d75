"""Chunks of about 80 to 180 words, cut of paragraphs, each a ``Document`` with a stable id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rag_accel.engine_api import Document
from rag_accel.sample.sentences import split_sentences

MIN_WORDS = 80
FULL_WORDS = 120
MAX_WORDS = 180
_MERGED_WORDS = 200
# Above this mean the words are data, or of a script that puts no spaces between them.
_LETTERS_PER_WORD = 14
# Every chunk of a section repeats its names: without a bound, a long text under a long name would
# fill memory with the square of the file.
_MAX_NAME_LETTERS = 500
_LONG_RUN = re.compile(r"(\S{80})(?=\S)")


@dataclass(frozen=True, slots=True)
class Section:
    """One documented thing before it is cut.

    Args:
        id: id of its first chunk; the next ones are ``id#2``, ``id#3`` and so on.
        heading: the beginning of each of its chunks, such as ``json.dumps(obj, ...)``.
        title: human name for citations.
        qualname: qualified name of the documented object.
        source: file it comes from, relative to its root.
        paragraphs: its text; list items begin with ``"- "``.
    """

    id: str
    heading: str
    title: str
    qualname: str
    source: str
    paragraphs: tuple[str, ...]


def chunk_section(section: Section) -> list[Document]:
    """Pack the paragraphs of a section into chunks, each beginning with the section's heading.

    A chunk is closed at the first paragraph that brings it to ``FULL_WORDS``. A paragraph longer
    than a chunk is cut between sentences, a sentence longer than a chunk between words. A short
    rest joins the chunk before it. Of a heading or name, the first 500 letters are kept.
    """
    heading, title, qualname = (
        name[:_MAX_NAME_LETTERS] for name in (section.heading, section.title, section.qualname)
    )
    metadata = {"source": section.source, "title": title, "qualname": qualname}
    packs = _pack([piece for text in section.paragraphs for piece in _pieces(text)])
    return [
        Document(
            id=section.id if number == 1 else f"{section.id}#{number}",
            text=_joined(heading, pack),
            metadata=dict(metadata),
        )
        for number, pack in enumerate(packs, start=1)
    ]


def count_words(text: str) -> int:
    """Count words, the unit of chunk sizes; a text of very long words counts by its letters."""
    return max(len(text.split()), len(text) // _LETTERS_PER_WORD)


def _pieces(paragraph: str) -> Iterator[str]:
    if count_words(paragraph) > MAX_WORDS:
        yield from _runs(_bounded_sentences(paragraph))
    elif paragraph.strip():
        yield paragraph


def _bounded_sentences(paragraph: str) -> Iterator[str]:
    for sentence in split_sentences(paragraph):
        if count_words(sentence) <= MAX_WORDS:
            yield sentence
        else:
            yield from _runs(_LONG_RUN.sub(r"\1 ", sentence).split())


def _runs(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts joined by spaces, as many at a time as ``MAX_WORDS`` allows."""
    run: list[str] = []
    size = 0
    for text in texts:
        words = count_words(text)
        if run and size + words > MAX_WORDS:
            yield " ".join(run)
            run, size = [], 0
        run.append(text)
        size += words
    if run:
        yield " ".join(run)


def _pack(pieces: Sequence[str]) -> list[list[str]]:
    packs: list[list[str]] = []
    size = 0
    for piece in pieces:
        words = count_words(piece)
        if not packs or size >= FULL_WORDS or (size and size + words > MAX_WORDS):
            packs.append([])
            size = 0
        packs[-1].append(piece)
        size += words
    if len(packs) > 1:
        rest, before = (sum(map(count_words, pack)) for pack in (packs[-1], packs[-2]))
        if rest < MIN_WORDS and rest + before <= _MERGED_WORDS:
            packs[-2:] = [packs[-2] + packs[-1]]
    return packs


def _joined(heading: str, pack: Sequence[str]) -> str:
    """Put the heading before the first paragraph; items stand on lines of their own."""
    texts = [heading, ":", "\n" if pack[0].startswith("- ") else " ", pack[0]]
    for piece in pack[1:]:
        texts += ("\n" if piece.startswith("- ") else "\n\n", piece)
    return "".join(texts)
