"""Search crowds by codes, without an engine around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bench.vectors import Vectors
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import ScoredDocument, SearchQuery, WorkId
from rag_accel.engines.retrieval import DocumentIndex
from rag_accel.engines.retrieval.coded_searches import CodedSearches
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.search_ways import MAX_CODE_BYTES
from rag_accel.engines.retrieval.shared_scans import SharedScans

CODED, SHARED = "8-bit lists", "shared scan"

CrowdSearch = Callable[[Sequence[Search]], "list[list[ScoredDocument]]"]


@contextmanager
def searching(index: DocumentIndex, threads: int) -> Iterator[dict[str, CrowdSearch]]:
    """Make both kinds of codes and give the searches by them."""
    coded = CodedSearches(index, MonotonicClock(), MAX_CODE_BYTES)
    shared = SharedScans(index, MonotonicClock(), MAX_CODE_BYTES)
    for kept in (coded.kept, shared.kept):
        with index.reading():
            kept.want(index.view())
        kept.wait()

    def by_lists(crowd: Sequence[Search]) -> list[list[ScoredDocument]]:
        return _there(coded.search(crowd))

    def by_scan(crowd: Sequence[Search]) -> list[list[ScoredDocument]]:
        return _there(shared.search(crowd, threads))

    yield {CODED: by_lists, SHARED: by_scan}
    coded.close()
    shared.close()


def _there(found: list[list[ScoredDocument]] | None) -> list[list[ScoredDocument]]:
    assert found is not None, "there are no codes"
    return found


def searches_of(queries: Vectors, k: int) -> list[Search]:
    """Return searches as the engine makes them of requests."""
    return [
        Search(WorkId(str(number)), query, SearchQuery(query, k))
        for number, query in enumerate(queries)
    ]
