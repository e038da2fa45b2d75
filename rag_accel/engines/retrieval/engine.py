"""Step a document index: the searches of all requests in shared FAISS calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rag_accel.engine_api import (
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    IngestBatch,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.checks import Vectors, check_count, check_filter, checked_query
from rag_accel.engines.retrieval.store import DocumentIndex
from rag_accel.engines.retrieval.vectors import thread_count
from rag_accel.errors import ConfigError
from rag_accel.machine import usable_cores

# Measured for 5,000 vectors of 384 dimensions, flat, one thread; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.0002, per_item_s=0.0003)


class RetrievalEngine(EngineBase):
    """Execute SEARCHING (``SearchQuery``) and INGESTION (``IngestBatch``) on one index.

    A step first runs its searches, then its ingestions: searches see the index as it was when the
    step began, and a search of the next step sees what was ingested. Searches with equal ``where``
    and ``nprobe`` and a ``k`` of similar size share one call; each result is what the query would
    find alone, in ids, order and scores. Nothing is cached.

    Final values: ``tuple[ScoredDocument, ...]`` of a search, best first; the ``tuple[str, ...]`` of
    its documents' ids of an ingestion, which is taken whole or not at all. Work ends in ``error``
    with what ``DocumentIndex.search`` or ``add`` raises for it alone; other work is not touched.

    Args:
        index: what to search; may also be used and changed from other threads.
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
        self._index = index
        self._profile = EngineProfile(
            kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
            max_batch=max_batch,
            latency=latency,
            max_threads=usable_cores() if max_threads is None else max_threads,
            pure=True,
        )
        self._pending: dict[WorkId, EngineRequest] = {}

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    @property
    def index(self) -> DocumentIndex:
        """Return the index that is searched."""
        return self._index

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work; it is looked at in the next step."""
        self._pending.update((request.id, request) for request in work)

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work that no step has taken yet."""
        for work in ids:
            self._pending.pop(work, None)

    def close(self) -> None:
        """Forget all work; the index stays the caller's."""
        self._pending.clear()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """End everything submitted, computing on ``budget.threads`` threads."""
        work, self._pending = list(self._pending.values()), {}
        if not work:
            return []
        with thread_count(min(budget.threads, self._profile.max_threads)):
            searches = [r for r in work if r.kind is not PrimitiveKind.INGESTION]
            ingestions = [r for r in work if r.kind is PrimitiveKind.INGESTION]
            outputs = self._search_all(searches)
            outputs += [self._ingest(request) for request in ingestions]
            return outputs

    def _search_all(self, requests: list[EngineRequest]) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        groups: dict[Hashable, list[_Search]] = {}
        for request in requests:
            try:
                search = _checked_search(request, self._index.spec.dimension)
                groups.setdefault(search.group_key(), []).append(search)
            except Exception as error:
                outputs.append(EngineOutput(request.id, "error", error=error))
        for group in groups.values():
            outputs += self._search_group(group)
        return outputs

    def _search_group(self, group: list[_Search]) -> list[EngineOutput]:
        try:
            found = self._search(group)
        except Exception as error:
            if len(group) == 1:
                return [EngineOutput(group[0].id, "error", error=error)]
            return [output for search in group for output in self._search_group([search])]
        pairs = zip(group, found, strict=True)
        return [EngineOutput(search.id, "final", value=tuple(hits)) for search, hits in pairs]

    def _search(self, group: list[_Search]) -> list[list[ScoredDocument]]:
        vectors = np.stack([search.vector for search in group])
        counts = [search.query.k for search in group]
        query = group[0].query
        return self._index.search(vectors, counts, query.where, query.nprobe)

    def _ingest(self, request: EngineRequest) -> EngineOutput:
        batch = request.payload
        try:
            if not isinstance(batch, IngestBatch):
                raise _wrong_payload(request, "IngestBatch")
            self._index.add(batch.documents, batch.vectors)
        except Exception as error:
            return EngineOutput(request.id, "error", error=error)
        ids = tuple(document.id for document in batch.documents)
        return EngineOutput(request.id, "final", value=ids)


@dataclass(frozen=True, slots=True)
class _Search:
    """Hold one valid search."""

    id: WorkId
    vector: Vectors
    query: SearchQuery

    def group_key(self) -> Hashable:
        """Return what searches of one call have in common.

        A call fetches for its largest k, so ks are grouped by their number of bits: none fetches
        more than twice what it asked for. A filter on an unhashable value is a group of its own.
        """
        condition: Hashable
        try:
            condition = frozenset((self.query.where or {}).items())
        except TypeError:
            condition = self.id
        return int(self.query.k).bit_length(), condition, self.query.nprobe


def _checked_search(request: EngineRequest, dimension: int) -> _Search:
    query = request.payload
    if request.kind is not PrimitiveKind.SEARCHING or not isinstance(query, SearchQuery):
        raise _wrong_payload(request, "SEARCHING with SearchQuery, or INGESTION with IngestBatch")
    check_count(query.k)
    check_filter(query.where, query.nprobe)
    return _Search(request.id, checked_query(query.vector, dimension), query)


def _wrong_payload(request: EngineRequest, valid: str) -> ConfigError:
    return ConfigError(
        "work that a retrieval engine cannot do",
        where=f"work {request.id!r}",
        found=f"{request.kind} with {type(request.payload).__name__}",
        valid=valid,
    )
