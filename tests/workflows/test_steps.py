"""Chunks and lists are cut as their bounds say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel import ConfigError, DocumentError
from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.workflows import Upload
from rag_accel.workflows.steps import Lines, Queries, merged

WORDS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=40)


@st.composite
def uploads(draw: st.DrawFn) -> Upload:
    size = draw(st.integers(1, 9))
    return Upload(size, draw(st.integers(0, size - 1)))


@given(WORDS, uploads())
def test_chunks_cover_a_text_with_the_overlap_they_promise(words: list[str], cut: Upload) -> None:
    chunks = [chunk.text.split() for chunk in cut([Document("d", " ".join(words))])]
    if not words:
        assert chunks == []
        return
    overlap = cut.overlap_words
    rebuilt = chunks[0] + [word for chunk in chunks[1:] for word in chunk[overlap:]]
    assert rebuilt == words
    assert all(0 < len(chunk) <= cut.chunk_words for chunk in chunks)
    for one, other in pairwise(chunks):
        assert one[len(one) - overlap :] == other[:overlap]
        assert len(other) > overlap


def test_chunks_know_their_document_and_keep_its_metadata() -> None:
    (first, second) = Upload(2, 0)([Document("d", "a  b c", {"year": 1932})])
    assert (first.id, first.text) == ("d#1", "a b")
    assert second.metadata == {"year": 1932, "document": "d", "chunk": 2}


def test_a_text_that_fits_stays_as_it_is() -> None:
    (chunk,) = Upload()("one\n  two")
    assert chunk.text == "one\n  two"


def test_equal_texts_get_equal_ids_and_others_get_others() -> None:
    one, same, other = Upload()(["x", "x", "y"])
    assert one.id == same.id != other.id


@pytest.mark.parametrize("bad", [[3], [None], [["x"]]])
def test_what_is_no_document_is_refused(bad: Any) -> None:
    with pytest.raises(DocumentError, match="uploaded"):
        Upload()(bad)


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (5, 5), (5, 9), (5, -1), (2.0, 1)])
def test_bounds_that_lead_nowhere_are_refused(size: Any, overlap: int) -> None:
    with pytest.raises(ConfigError, match="_words"):
        Upload(size, overlap)


@given(st.text("ab -*1.)\n", max_size=40), st.integers(1, 4))
def test_lines_are_bounded_clean_and_different(text: str, limit: int) -> None:
    found = Lines(limit)(text)
    assert len(found) == len(set(found)) <= limit
    assert all(line == line.strip() and "\n" not in line and line for line in found)
    queries = Queries(limit)(text, "question")
    assert len(queries) == limit
    assert queries[: len(found)] == found


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("- a", "a"),
        ("2. a", "a"),
        ("(3) a", "a"),
        ("10: a", "a"),
        ("1932 a", "1932 a"),
        ("-a", "-a"),
    ],
)
def test_marks_of_lists_are_dropped_and_nothing_else(line: str, read: str) -> None:
    assert Lines(1)(line) == (read,)


def test_merging_keeps_the_first_of_each_document() -> None:
    a, b, c = (ScoredDocument(Document(id, id), 1.0) for id in "abc")
    again = ScoredDocument(Document("a", "other"), 9.0)
    assert merged([b, a], [again, c], []) == (b, a, c)
    assert merged([a.document], [b]) == (a.document, b)
