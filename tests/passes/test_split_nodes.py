"""The results of parts make up exactly the result of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import Document, RerankBatch, ScoredDocument, SearchQuery, TextBatch
from rag_accel.passes.split_nodes import joined, part_of

CUTS = st.lists(st.integers(0, 12), max_size=4).map(sorted)


def bounds(cuts: list[int], count: int) -> list[tuple[int, int | None]]:
    """Return ranges that cover ``count`` items without gap or overlap; the last is open."""
    inner = [cut for cut in cuts if cut < count]
    return list(zip([0, *inner], [*inner, None], strict=True))


def vectors(batch: TextBatch) -> np.ndarray:
    rows = [[len(text), hash(text) % 97] for text in batch.texts]
    return np.array(rows, dtype=np.float32).reshape(-1, 2)


def ranked(batch: RerankBatch) -> tuple[ScoredDocument, ...]:
    """Rank as every itemwise engine does: by score, equal scores in the order given."""
    scored = [ScoredDocument(one, float(len(one.text))) for one in batch.documents]
    return tuple(sorted(scored, key=lambda one: -one.score)[: batch.top_n])


@given(texts=st.lists(st.text(max_size=3), max_size=12), cuts=CUTS)
def test_the_rows_of_the_parts_are_those_of_the_whole(texts: list[str], cuts: list[int]) -> None:
    whole = TextBatch(tuple(texts), "document")
    parts = [part_of(whole, start, stop) for start, stop in bounds(cuts, len(texts))]
    assert all(part.role == "document" for part in parts)
    result = joined(whole, [vectors(part) for part in parts])
    np.testing.assert_array_equal(result, vectors(whole))
    assert result.dtype == np.float32


@given(
    texts=st.lists(st.sampled_from(["", "a", "b", "ab", "abc"]), max_size=12),
    cuts=CUTS,
    top_n=st.one_of(st.none(), st.integers(0, 14)),
)
def test_the_ranking_of_the_parts_is_that_of_the_whole(
    texts: list[str], cuts: list[int], top_n: int | None
) -> None:
    documents = tuple(Document(f"d{n}", text) for n, text in enumerate(texts))
    whole = RerankBatch("q", documents, top_n)
    parts = [part_of(whole, start, stop) for start, stop in bounds(cuts, len(texts))]
    assert joined(whole, [ranked(part) for part in parts]) == ranked(whole)


@pytest.mark.parametrize("payload", [None, "text", SearchQuery(np.zeros(2), 3)])
def test_a_payload_without_items_has_no_parts(payload: object) -> None:
    assert part_of(payload, 0, 1) is None
