"""Searches of one step that are not cut; those that can share a call."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engine_api import EngineOutput, ScoredDocument
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search, grouped
from rag_accel.engines.retrieval.stepped.scan import ScanCost, ScanCosts

_logger = logging.getLogger(__name__)


class WholeSearches:
    """Searches that are not cut. Used on one thread; the index may change.

    Args:
        index: the index to search.
        clock: measures searches.
        coded: searches by codes.
        costs: learned costs of searches.
    """

    def __init__(
        self, index: DocumentIndex, clock: Clock, coded: CodedSearches, costs: ScanCosts
    ) -> None:
        self._index = index
        self._clock = clock
        self._coded = coded
        self._costs = costs

    def predict_s(self, searches: Sequence[Search], threads: int) -> float:
        """Return how long these searches will take together, in seconds."""
        return self._cost(threads).predict_s(self._compared_by(searches))

    def see(self, searches: Sequence[Search]) -> None:
        """Count searches that are stepped, which codes may also speed up."""
        for crowd in grouped(searches, Search.condition):
            if self._coded.pays(len(crowd), self._compared_by(crowd)):
                self._coded.see(crowd)

    def search(self, searches: Sequence[Search], threads: int) -> list[EngineOutput]:
        """Return the outputs of all searches; a search that raises fails alone."""
        crowds = grouped(searches, Search.condition)
        return [output for crowd in crowds for output in self._crowd(crowd, threads)]

    def _crowd(self, crowd: list[Search], threads: int) -> list[EngineOutput]:
        """Search for those with equal filters by codes where that pays and there are some."""
        if not self._index.is_trained:
            return self._each(crowd, threads)
        compared = self._compared_by(crowd)
        if not self._coded.pays(len(crowd), compared):
            return self._each(crowd, threads)
        started = self._clock.now()
        outputs = self._by_codes(crowd)
        if outputs is None:
            outputs = self._each(crowd, threads)
        else:
            self._cost(threads).observe(compared, self._clock.now() - started, 0.0)
        self._coded.see(crowd)  # last: making codes takes cores from the search
        return outputs

    def _by_codes(self, crowd: list[Search]) -> list[EngineOutput] | None:
        """Search by codes; None if that is not possible, or fails: then each is searched."""
        try:
            found = self._coded.search(crowd)
        except Exception:
            # Searched apart, a bad search fails alone and says why.
            _logger.warning("a search by codes failed; its searches go on apart", exc_info=True)
            return None
        return None if found is None else _final(crowd, found)

    def _each(self, searches: list[Search], threads: int) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        for group in grouped(searches, Search.group_key):
            started = self._clock.now()
            outputs += self._group(group)
            if self._index.is_trained:
                taken_s = self._clock.now() - started
                self._cost(threads).observe(self._compared_by(group), taken_s, 0.0)
        return outputs

    def _group(self, group: list[Search]) -> list[EngineOutput]:
        try:
            found = self._found(group)
        except Exception as error:
            if len(group) == 1:
                return [EngineOutput(group[0].id, "error", error=error)]
            return [output for search in group for output in self._group([search])]
        return _final(group, found)

    def _found(self, group: list[Search]) -> list[list[ScoredDocument]]:
        queries = np.stack([search.vector for search in group])
        counts = [search.query.k for search in group]
        query = group[0].query
        return self._index.search_checked(queries, counts, query.where, query.nprobe)

    def _compared_by(self, searches: Sequence[Search]) -> int:
        """Return with how many vectors these searches are compared."""
        queries = (search.query for search in searches)
        return sum(self._index.num_compared(query.where, query.nprobe) for query in queries)

    def _cost(self, threads: int) -> ScanCost:
        return self._costs.of(("whole", threads), 0.0)


def _final(
    searches: Sequence[Search], found: Sequence[Sequence[ScoredDocument]]
) -> list[EngineOutput]:
    pairs = zip(searches, found, strict=True)
    return [EngineOutput(search.id, "final", value=tuple(hits)) for search, hits in pairs]
