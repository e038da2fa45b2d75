"""An engine that searches and fills a document index, its searches in shared calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import (
    VALID_WORK,
    Search,
    checked_searches,
    ingested,
)
from rag_accel.engines.retrieval.stepped_searches import (
    MOST_RESULTS,
    HeldPiece,
    HeldSearch,
    SteppedSearches,
)
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan
from rag_accel.engines.retrieval.vectors.read_order import SearchHistory
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.system.processor import usable_cores

# Measured for 5,000 vectors of 384 dimensions, flat, one thread; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.0002, per_item_s=0.0003)


class RetrievalEngine(SteppedSearches):
    """An engine for SEARCHING (``SearchQuery``) and INGESTION (``IngestBatch``) on one index.

    Each result is what the query would find alone, in ids, order and scores. Nothing is cached.

    Searches with equal ``where`` and ``nprobe`` and a ``k`` of similar size share one call. Where a
    step is not expected to end in time, long searches of clusters are read in pieces over several
    steps. One with a filter or of an index with codes is not. A search that asks for provisional
    results reports some between pieces, if it takes long enough. It reads the clusters of its
    request's last results early, and reports at its very beginning where enough of these may be
    its own. Each sees one state of the index: if that changes between two of its pieces, it is
    made again in one call.

    Ingestions come behind the searches of the step in which they came: a search sees the documents
    of those that ended before it was submitted.

    Final values: ``tuple[ScoredDocument, ...]`` of a search, best first; the ``tuple[str, ...]`` of
    its documents' ids of an ingestion, which is taken whole or not at all. Work ends in ``error``
    with what ``DocumentIndex.search`` or ``add`` raises for it alone; other work is not touched.

    Args:
        index: the index to search; may also be used and changed from other threads.
        max_batch: queries worth putting into one step.
        max_threads: most threads of a step; by default the cores this process may use.
        latency: first guess of a step's time.
    """

    def __init__(
        self,
        index: DocumentIndex,
        *,
        max_batch: int = 64,
        max_threads: int | None = None,
        latency: LatencyModel = _FIRST_GUESS,
    ) -> None:
        super().__init__(
            EngineProfile(
                kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
                max_batch=max_batch,
                latency=latency,
                max_threads=usable_cores() if max_threads is None else max_threads,
                stepped=True,
                pure=True,
                capabilities=frozenset({Capability.ENDS_IN_TIME}),
            )
        )
        self._index = index
        self._history = SearchHistory()

    @property
    def index(self) -> DocumentIndex:
        """Return the index that is searched."""
        return self._index

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of searches in pieces, of early stops and of hot clusters, if any."""
        return {**super().counts, **self._index.stop_counts, **self._index.tier_counts}

    def describe_parts(self) -> tuple[str, ...]:
        return (*super().describe_parts(), *map(str, self._index.stopping), *self._index.tier_text)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Search, then ingest, on ``budget.threads`` threads."""
        taken = self._taken()
        ingestions = [request for request in taken if request.kind is PrimitiveKind.INGESTION]
        others = [request for request in taken if request.kind is not PrimitiveKind.INGESTION]
        searches, outputs = checked_searches(others, self._index.spec.dimension)
        threads = min(budget.threads, self._profile.max_threads)
        with thread_count(threads):
            outputs += self._search(searches, budget, threads)
            outputs += [ingested(self._index, request, VALID_WORK) for request in ingestions]
        return outputs

    def _numbers(self, search: Search, in_pieces: bool) -> int:
        query = search.query
        is_cut = not query.where and 0 < query.k <= MOST_RESULTS
        in_full = in_pieces and search.provisional
        return self._index.numbers_read(query.nprobe, in_full) if is_cut else 0

    def _whole(self, group: list[Search], threads: int) -> list[EngineOutput]:
        query, (vectors, counts) = group[0].query, _asked(group)
        try:
            results = self._index.search_checked(vectors, counts, query.where, query.nprobe)
        except Exception as error:
            if len(group) == 1:
                return [EngineOutput(group[0].id, "error", error=error)]
            return [output for search in group for output in self._whole([search], threads)]
        pairs = zip(group, results, strict=True)
        return [EngineOutput(search.id, "final", value=tuple(hits)) for search, hits in pairs]

    def _begin(self, group: list[Search]) -> list[tuple[ClusterScan, Any]]:
        begun = self._index.begin_scans(*_asked(group), group[0].query.nprobe)
        for place, (search, state) in enumerate(zip(group, begun, strict=True)):
            names = search.namespace, search.request_id
            last = self._history.get(*names, state.view.version) if search.provisional else None
            if last is not None:
                begun[place] = self._index.follow(state, last)
        return [(state.scan, state) for state in begun]

    def _borders(self, scan: ClusterScan, state: Any, threads: int) -> list[int]:
        borders = super()._borders(scan, state, threads)
        # Fewer documents than it looks for cannot be the final ones.
        return [0, *borders] if borders and len(state.seeds) >= state.limit else borders

    def _read(self, pieces: Sequence[HeldPiece], threads: int) -> list[HeldSearch]:
        states, ends = [one.held.state for one in pieces], [one.piece for one in pieces]
        changed = self._index.read_scans(states, ends, threads)
        return [one.held for one in pieces if one.held.state in changed]

    def _value(self, held: HeldSearch) -> tuple[Any, ...] | None:
        found = self._index.scanned(held.state)
        if found is None:
            return None
        if held.scan.is_over:
            self._history.add(held.search.namespace, held.search.request_id, found[1])
        return tuple(found[0])


def _asked(group: Sequence[Search]) -> tuple[Vectors, list[int]]:
    return np.stack([search.vector for search in group]), [search.query.k for search in group]
