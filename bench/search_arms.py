"""Search one large index in every way that is compared: ours, and FAISS's own, at the call itself.

What is timed goes from queries to labels and scores, which is what FAISS's call returns: no driver,
no engine, and no documents but in the arm that says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.baselines.faiss_coded import K_FACTOR, FaissCoded
from bench.vectors import Labels, Vectors, stock_index
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import SearchQuery, WorkId
from rag_accel.engines.retrieval import DocumentIndex
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.coded.searches import MAX_CODE_BYTES, CodedSearches
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.vectors.nearest import Candidates, Source, nearest
from rag_accel.engines.retrieval.vectors.vectors import Scores, SearchScope
from rag_accel.errors import EngineError

EXACT, VECTORS = "exact, 8-bit lists", "exact, vectors"
UNPROVED, DOCUMENTS = "8-bit lists without proof", "exact, 8-bit lists, with documents"
SQ8_REFINE, FLOAT32 = "FAISS SQ8 + refine", "FAISS float32"
OURS = (EXACT, VECTORS, UNPROVED, DOCUMENTS)
PROVED = (EXACT, VECTORS, DOCUMENTS)

Arm = Callable[[Vectors, int], Any]
"""Takes queries and the number of clusters to visit."""


@dataclass(frozen=True, slots=True)
class Unproved:
    """A ``Source`` of as many candidates as FAISS refines, taken on trust."""

    codes: CodedVectors

    def first_count(self, limit: int) -> int:
        """Return how many are fetched."""
        return int(limit * K_FACTOR)

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan the codes."""
        return self.codes.fetch(queries, count, scope)

    def candidates(self, queries: Vectors, scores: Scores, labels: Labels) -> Candidates:
        """Claim that nothing else can be among the nearest."""
        return Candidates(labels, np.full(len(labels), -np.inf))


@contextmanager
def coded_searches(index: DocumentIndex) -> Iterator[CodedSearches]:
    """Give the searches by 8-bit lists of an index, with the lists made."""
    coded = CodedSearches(index, MonotonicClock(), MAX_CODE_BYTES)
    with index.reading():
        coded.kept.want(index.view())
    coded.kept.wait()
    yield coded
    coded.close()


def codes_of(index: DocumentIndex, coded: CodedSearches) -> CodedVectors:
    """Return the codes.

    Raises:
        EngineError: there are none.
    """
    with index.reading():
        codes = coded.kept.codes(index.view())
    if codes is None:
        raise EngineError("no codes of an index", where="8-bit lists", hint="see the log")
    return codes


def arms_of(
    index: DocumentIndex, coded: CodedSearches, faiss_coded: FaissCoded, k: int
) -> dict[str, Arm]:
    """Return every way to search, by its name."""
    stock = stock_index(index, 1)
    codes = codes_of(index, coded)

    def by(source: Source | None) -> Arm:
        def search(queries: Vectors, nprobe: int) -> Any:
            with index.reading():
                view = index.view()
                scope = view.scope(None, nprobe)
                return nearest(view.vectors, queries, [k] * len(queries), scope, source)

        return search

    def with_documents(queries: Vectors, nprobe: int) -> Any:
        return coded.search(searches_of(queries, k, nprobe))

    def float32(queries: Vectors, nprobe: int) -> Any:
        stock.nprobe = nprobe
        return stock.search(queries, k)

    return {
        SQ8_REFINE: lambda queries, nprobe: faiss_coded.search(queries, k, nprobe),
        EXACT: by(codes),
        UNPROVED: by(Unproved(codes)),
        VECTORS: by(None),
        FLOAT32: float32,
        DOCUMENTS: with_documents,
    }


def labels_of(found: Any) -> Labels:
    """Return the labels that an arm has found, ``[n, k]``."""
    if isinstance(found, tuple):
        return found[1]
    if hasattr(found[0], "labels"):
        return np.stack([hits.labels for hits in found])
    return np.asarray([[int(hit.document.id) for hit in hits] for hits in found])


def in_turn(
    arms: Mapping[str, Arm], asked: Sequence[Vectors], nprobe: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Let every arm search each of ``asked`` once; return seconds by turn, and what was found.

    In each turn another arm goes first, and no two arms search the same queries: the second would
    find in the cache what the first has read. Over all turns each searches all of them. What was
    found stands in the order of ``asked``. Each arm searches once before, which does not count.
    """
    names, count = list(arms), len(asked)
    times: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, list[Any]] = {name: [None] * count for name in names}
    for name in names:
        arms[name](asked[0], nprobe)
    for turn in range(count):
        for place in range(len(names)):
            number = (turn + place) % len(names)
            name, which = names[number], (turn + number * count // len(names)) % count
            started = time.perf_counter()
            found[name][which] = arms[name](asked[which], nprobe)
            times[name].append(time.perf_counter() - started)
    return times, found


def searches_of(queries: Vectors, k: int, nprobe: int | None = None) -> list[Search]:
    """Return searches as the engine makes them of requests."""
    query = SearchQuery(queries[0], k, None, nprobe)
    return [
        Search(WorkId(str(number)), vector, replace(query, vector=vector))
        for number, vector in enumerate(queries)
    ]
