"""Hybrid search in steps: by vector and by words, the two rankings fused by their ranks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    HybridQuery,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.hybrid.lexical import (
    LexicalIndex,
    LexicalSnapshot,
    check_text,
    living,
)
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec, fuse_rankings
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.pending_requests import PendingRequests
from rag_accel.engines.retrieval.search_request import (
    filter_condition,
    grouped,
    ingested,
    wrong_payload,
)
from rag_accel.engines.retrieval.vectors.checks import check_filter, checked_query
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.errors import ConfigError
from rag_accel.system.processor import usable_cores

VALID_WORK = "SEARCHING with HybridQuery, or INGESTION with IngestBatch"

# Measured for 5,000 documents of 100 words and 384 dimensions, flat; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.0002, per_item_s=0.0005)


class HybridEngine(PendingRequests):
    """An engine for SEARCHING (``HybridQuery``) and INGESTION (``IngestBatch``) on one index.

    The searches of a step are ranked by words one by one, and by vector in one call for all with
    equal ``where`` and ``nprobe`` and a depth of similar size; then each pair of rankings is fused
    (Cormack et al., SIGIR 2009). Each result is what the query would find alone. A query without
    words that documents know is ranked by vector alone, still with scores of the fusion.

    A step first runs its searches, then its ingestions. Changed documents are found by the next
    step, in both rankings: the first step after a change rebuilds the lexical ranking, see
    ``lexical.py`` for the cost. A document deleted
    while a step runs is left out when the rankings are fused.

    Final values: ``tuple[ScoredDocument, ...]`` of a search, best first: ``min(k, matching
    documents)`` of them, or fewer where the ranking by vector has weight 0 and fewer match the
    words; the ``tuple[str, ...]`` of ids of an ingestion. Work that cannot be done ends in an
    ``error`` of its own: ConfigError for a text that is no string, a ``k`` out of range, or a wrong
    filter or vector; EngineOutputError for a vector with NaN.

    Args:
        index: the index to search; may also be used and changed from other threads.
        spec: depths, weights and tokenising; a query may have weights and depths of its own.
        lexical: the ranking by words of the same index, to share it; by default one is made.
        max_batch: queries worth putting into one step.
        max_threads: most threads of a step; by default the cores this process may use. Ranking by
            words takes one.
        latency: first guess of a step's time.
    """

    def __init__(
        self,
        index: DocumentIndex,
        spec: HybridSpec | None = None,
        *,
        lexical: LexicalIndex | None = None,
        max_batch: int = 64,
        max_threads: int | None = None,
        latency: LatencyModel = _FIRST_GUESS,
    ) -> None:
        self._spec = HybridSpec() if spec is None else spec
        self._index = index
        self._lexical = LexicalIndex(index, self._spec.lexical) if lexical is None else lexical
        self._check_lexical()
        super().__init__(
            EngineProfile(
                kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
                max_batch=max_batch,
                latency=latency,
                max_threads=usable_cores() if max_threads is None else max_threads,
                pure=True,
                capabilities=frozenset({Capability.READS_TEXT}),
            )
        )

    def _check_lexical(self) -> None:
        if self._lexical.index is not self._index or self._lexical.spec != self._spec.lexical:
            raise ConfigError(
                "a ranking by words of another index, or made in another way",
                where="lexical",
                found=repr(self._lexical.spec),
                valid="a LexicalIndex of the index of the engine with its spec.lexical",
            )

    @property
    def index(self) -> DocumentIndex:
        """Return the index that is searched."""
        return self._index

    @property
    def lexical(self) -> LexicalIndex:
        """Return the ranking by words, to be used from any thread."""
        return self._lexical

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """End everything submitted; searching by vector uses ``budget.threads`` threads."""
        work = self._taken()
        if not work:
            return []
        with thread_count(min(budget.threads, self._profile.max_threads)):
            searches = [r for r in work if r.kind is not PrimitiveKind.INGESTION]
            ingestions = [r for r in work if r.kind is PrimitiveKind.INGESTION]
            outputs = self._search_all(searches)
            outputs += [ingested(self._index, request, VALID_WORK) for request in ingestions]
            return outputs

    def _search_all(self, requests: list[EngineRequest]) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        searches: list[_Search] = []
        for request in requests:
            try:
                searches.append(self._checked(request))
            except Exception as error:
                outputs.append(EngineOutput(request.id, "error", error=error))
        if not searches:
            return outputs
        try:
            snapshot = self._lexical.current()
        except Exception as error:  # no member can be searched for
            return [*outputs, *(_failed(search, error) for search in searches)]
        good: list[_Search] = []
        for search in searches:
            try:
                search.worded = search.ranked_by_words(snapshot)
            except Exception as error:
                outputs.append(_failed(search, error))
            else:
                good.append(search)
        for group in grouped(good, _Search.group_key):
            outputs += self._search_group(snapshot.version, group)
        return outputs

    def _search_group(self, version: int, group: list[_Search]) -> list[EngineOutput]:
        try:
            dense = self._dense(group)
            pairs = zip(group, dense, strict=True)
            values = [self._fused(version, search, hits) for search, hits in pairs]
        except Exception as error:
            if len(group) == 1:
                return [_failed(group[0], error)]
            return [out for search in group for out in self._search_group(version, [search])]
        pairs = zip(group, values, strict=True)
        return [EngineOutput(search.id, "final", value=value) for search, value in pairs]

    def _dense(self, group: list[_Search]) -> list[list[ScoredDocument]]:
        vectors = np.stack([search.vector for search in group])
        depths = [search.depth for search in group]
        query = group[0].query
        return self._index.search(vectors, depths, query.where, query.nprobe)

    def _fused(
        self, version: int, search: _Search, dense: list[ScoredDocument]
    ) -> tuple[ScoredDocument, ...]:
        # Of a document in both rankings the dense one is taken: that search was the later one.
        hits = fuse_rankings(dense, search.worded, search.spec)
        return tuple(living(self._index, version, hits)[: max(0, search.query.k)])

    def _checked(self, request: EngineRequest) -> _Search:
        query = request.payload
        if request.kind is not PrimitiveKind.SEARCHING or not isinstance(query, HybridQuery):
            raise wrong_payload(request, VALID_WORK)
        check_text(query.text, f"text of work {request.id!r}")
        check_filter(query.where, query.nprobe)
        spec = self._spec.of_query(query)
        spec.check_k(query.k)
        vector = checked_query(query.vector, self._index.spec.dimension)
        return _Search(request.id, query, spec, vector)


@dataclass(slots=True)
class _Search:
    """One valid search: ``vector: [dim], float32``, and its ranking by words."""

    id: WorkId
    query: HybridQuery
    spec: HybridSpec
    vector: Vectors
    worded: list[ScoredDocument] = field(default_factory=list[ScoredDocument])

    @property
    def depth(self) -> int:
        """Return how many documents are wanted of the ranking by vector."""
        return max(self.spec.dense_depth, self.query.k)

    def ranked_by_words(self, snapshot: LexicalSnapshot) -> list[ScoredDocument]:
        depth = max(self.spec.lexical_depth, self.query.k)
        return snapshot.search(self.query.text, depth, self.query.where)

    def group_key(self) -> Hashable:
        """Return what searches of one call by vector have in common.

        A call fetches for its largest depth, so depths are grouped by their number of bits. A
        filter on an unhashable value is a group of its own.
        """
        condition = filter_condition(self.query.where, self.id)
        return int(self.depth).bit_length(), condition, self.query.nprobe


def _failed(search: _Search, error: Exception) -> EngineOutput:
    return EngineOutput(search.id, "error", error=error)
