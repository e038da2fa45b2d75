"""An engine that searches and fills a document index, its searches in shared calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rag_accel.engine_api import (
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.pending_requests import PendingRequests
from rag_accel.engines.retrieval.search_request import (
    VALID_WORK,
    Search,
    checked_search,
    grouped,
    ingested,
)
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.system.processor import usable_cores

# Measured for 5,000 vectors of 384 dimensions, flat, one thread; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.0002, per_item_s=0.0003)


class RetrievalEngine(PendingRequests):
    """An engine for SEARCHING (``SearchQuery``) and INGESTION (``IngestBatch``) on one index.

    Each result is what the query would find alone, in ids, order and scores. Nothing is cached.

    All submitted work ends in the next step. Searches with equal ``where`` and ``nprobe`` and a
    ``k`` of similar size share one call. Ingestions come behind the searches submitted with them: a
    search sees the documents of those that ended before it was submitted.

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
                pure=True,
            )
        )
        self._index = index

    @property
    def index(self) -> DocumentIndex:
        """Return the index that is searched."""
        return self._index

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts of early stops; empty without them."""
        return self._index.stop_counts

    def describe_parts(self) -> tuple[str, ...]:
        return tuple(map(str, self._index.stopping))

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Search, then ingest, on ``budget.threads`` threads; return the outputs of all work."""
        outputs = list[EngineOutput]()
        searches, ingestions = list[Search](), list[EngineRequest]()
        for request in self._taken():
            if request.kind is PrimitiveKind.INGESTION:
                ingestions.append(request)
                continue
            try:
                searches.append(checked_search(request, self._index.spec.dimension))
            except Exception as error:
                outputs.append(EngineOutput(request.id, "error", error=error))
        with thread_count(min(budget.threads, self._profile.max_threads)):
            for group in grouped(searches, Search.group_key):
                outputs += self._search(group)
            outputs += [ingested(self._index, request, VALID_WORK) for request in ingestions]
        return outputs

    def _search(self, group: list[Search]) -> list[EngineOutput]:
        """Search for a group in one call; a search that raises fails alone."""
        query = group[0].query
        vectors = np.stack([search.vector for search in group])
        counts = [search.query.k for search in group]
        try:
            results = self._index.search_checked(vectors, counts, query.where, query.nprobe)
        except Exception as error:
            if len(group) == 1:
                return [EngineOutput(group[0].id, "error", error=error)]
            return [output for search in group for output in self._search([search])]
        pairs = zip(group, results, strict=True)
        return [EngineOutput(search.id, "final", value=tuple(hits)) for search, hits in pairs]
