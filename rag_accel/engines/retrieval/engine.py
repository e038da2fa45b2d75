"""An engine that searches and fills a document index, its searches in shared calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.coded.searches import MAX_CODE_BYTES, CodedSearches
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.pending_requests import PendingRequests
from rag_accel.engines.retrieval.search_request import (
    VALID_WORK,
    Search,
    checked_search,
    ingested,
)
from rag_accel.engines.retrieval.stepped.pool import SteppedSearches
from rag_accel.engines.retrieval.stepped.scan import ScanCost, ScanCosts
from rag_accel.engines.retrieval.vectors.spec import IndexKind
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.engines.retrieval.whole_searches import WholeSearches
from rag_accel.system.processor import usable_cores

# Measured for 5,000 vectors of 384 dimensions, flat, one thread; the scheduler refines it.
_FIRST_GUESS = LatencyModel(base_s=0.0002, per_item_s=0.0003)

# Off: it waits for a driver that grants a step less time than a whole search takes. On one thread
# slices of a batch of one cost 1.3 to 1.7 times what one call does (300,000 vectors of 128
# dimensions, nprobe 128 to 1024); from 8 ms on they are near one call's cost.
SLICED_FROM_S = math.inf

# About what 300,000 vectors of 128 dimensions in 1024 clusters were measured to take on one thread;
# the engine refines both.
_FIRST_BASE_S = 0.0001
_FIRST_PER_NUMBER_S = 1e-10


@dataclass(frozen=True, slots=True)
class _Ingestion:
    request: EngineRequest
    turn: int


class RetrievalEngine(PendingRequests):
    """An engine for SEARCHING (``SearchQuery``) and INGESTION (``IngestBatch``) on one index.

    Each result is what the query would find alone, in ids, order and scores. Nothing is cached.

    Searches that are predicted to be short, and all on an index without clusters, end in the step
    that takes them: searches with equal ``where`` and ``nprobe`` and a ``k`` of similar size share
    one call. Longer ones are *stepped*, see ``stepped/pool.py``: their state stays here under their
    work id, and newcomers join at the next step. A search that spans steps answers from the index
    as it is when it ends.

    A large index with clusters also keeps codes of its vectors (``coded/kept_codes.py``): 8-bit
    lists that FAISS scans for crowds that read enough.

    An ingestion waits for the searches that were submitted before it or together with it: they see
    the index without it, and a search submitted after its end sees the new documents.

    Final values: ``tuple[ScoredDocument, ...]`` of a search, best first; the ``tuple[str, ...]`` of
    its documents' ids of an ingestion, which is taken whole or not at all. Work ends in ``error``
    with what ``DocumentIndex.search`` or ``add`` raises for it alone; other work is not touched.

    Args:
        index: the index to search; may also be used and changed from other threads.
        max_batch: queries worth putting into one step.
        max_threads: most threads of a step; by default the cores this process may use.
        latency: first guess of a step's time.
        sliced_from_s: searches that together take less are never cut; a newcomer waits no longer
            than this for them, in seconds. By default none is cut; 0.008 is a sensible value to
            try.
        max_code_bytes: most memory for codes, which need ``dimension + 24`` bytes for each vector;
            an index that needs more gets none.
        clock: measures ``StepBudget.time_s`` and the cost of reading clusters.
    """

    def __init__(
        self,
        index: DocumentIndex,
        *,
        max_batch: int = 64,
        max_threads: int | None = None,
        latency: LatencyModel = _FIRST_GUESS,
        sliced_from_s: float = SLICED_FROM_S,
        max_code_bytes: int = MAX_CODE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            EngineProfile(
                kinds=frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.INGESTION}),
                max_batch=max_batch,
                latency=latency,
                max_threads=usable_cores() if max_threads is None else max_threads,
                stepped=index.spec.kind is IndexKind.IVF,
                pure=True,
            )
        )
        self._index = index
        self._sliced_from_s = sliced_from_s
        self._clock = clock or MonotonicClock()
        self._costs = ScanCosts(_FIRST_PER_NUMBER_S * index.spec.dimension)
        self._coded = CodedSearches(index, self._clock, max_code_bytes)
        self._whole = WholeSearches(index, self._clock, self._coded, self._costs)
        codes_of = self._coded.kept.codes
        self._stepped = SteppedSearches(index, self._clock, self._piece_cost, codes_of)
        self._ingestions: dict[WorkId, _Ingestion] = {}
        self._turn = 0

    @property
    def index(self) -> DocumentIndex:
        """Return the index that is searched."""
        return self._index

    def make_codes(self) -> bool:
        """Make the 8-bit lists now and wait; return whether there are some.

        For users that would rather pay at the start than search more slowly for some seconds. The
        index should not change meanwhile.
        """
        with self._index.reading():
            self._coded.kept.want(self._index.view())
        self._coded.kept.wait()
        with self._index.reading():
            return self._coded.kept.codes(self._index.view()) is not None

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work, half-done searches included."""
        super().cancel(ids)
        for work in ids:
            self._ingestions.pop(work, None)
        self._stepped.cancel(ids)

    def close(self) -> None:
        """Forget all work; the index stays the caller's."""
        super().close()
        self._ingestions.clear()
        self._stepped.clear()
        self._coded.close()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Search and ingest on ``budget.threads`` threads; return the outputs of ended work.

        Without half-done searches everything submitted ends, unless its searches are predicted to
        take longer than ``budget.time_s`` and than ``sliced_from_s``. Then they are read piece by
        piece until the time is over, or, without one, until something has ended.
        """
        outputs, searches = self._take_pending()
        if not (searches or self._stepped or self._ingestions):
            return outputs
        threads = min(budget.threads, self._profile.max_threads)
        with thread_count(threads):
            if self._stepped or self._is_worth_slicing(searches, budget.time_s, threads):
                self._whole.see(searches)
                self._stepped.add(searches, self._turn)
                time_s = 0.0 if outputs and budget.time_s is None else budget.time_s
                outputs += self._stepped.advance(time_s, threads)
            else:
                outputs += self._whole.search(searches, threads)
            if self._ingestions:
                outputs += self._ingest()
        return outputs

    def _take_pending(self) -> tuple[list[EngineOutput], list[Search]]:
        """Set ingestions aside and return the errors of bad searches, and the good ones."""
        self._turn += 1
        outputs: list[EngineOutput] = []
        searches: list[Search] = []
        for request in self._taken():
            if request.kind is PrimitiveKind.INGESTION:
                self._ingestions[request.id] = _Ingestion(request, self._turn)
                continue
            try:
                searches.append(checked_search(request, self._index.spec.dimension))
            except Exception as error:
                outputs.append(EngineOutput(request.id, "error", error=error))
        return outputs, searches

    def _is_worth_slicing(
        self, searches: Sequence[Search], time_s: float | None, threads: int
    ) -> bool:
        if not self._index.is_trained:
            return False
        return self._whole.predict_s(searches, threads) > max(time_s or 0.0, self._sliced_from_s)

    def _piece_cost(self, threads: int, has_filter: bool, is_coded: bool) -> ScanCost:
        return self._costs.of(("piece", threads, has_filter, is_coded), _FIRST_BASE_S)

    def _ingest(self) -> list[EngineOutput]:
        """Ingest the batches that are older than every waiting search."""
        oldest = self._stepped.oldest_turn
        ripe = [
            ingestion.request
            for ingestion in self._ingestions.values()
            if oldest is None or ingestion.turn < oldest
        ]
        for request in ripe:
            del self._ingestions[request.id]
        return [ingested(self._index, request, VALID_WORK) for request in ripe]
