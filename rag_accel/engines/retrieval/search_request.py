"""Check a search that was submitted and say with which others it can share a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, WorkId
from rag_accel.engines.retrieval.checks import Vectors, check_count, check_filter, checked_query
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Search:
    """Hold one valid search; ``vector: [dim], float32``."""

    id: WorkId
    vector: Vectors
    query: SearchQuery

    def condition(self) -> Hashable:
        """Return what searches with equal filters have in common, and no others.

        A filter on an unhashable value is a condition of its own.
        """
        try:
            return frozenset((self.query.where or {}).items())
        except TypeError:
            return self.id

    def group_key(self) -> Hashable:
        """Return what searches of one call have in common.

        A call fetches for its largest k, so ks are grouped by their number of bits: none fetches
        more than twice what it asked for.
        """
        return int(self.query.k).bit_length(), self.condition(), self.query.nprobe


def checked_search(request: EngineRequest, dimension: int) -> Search:
    """Return the search of a request.

    Raises:
        ConfigError: another kind of work, or a wrong shape, ``k``, ``where`` or ``nprobe``.
        EngineOutputError: the query holds NaN or an infinity.
    """
    query = request.payload
    if request.kind is not PrimitiveKind.SEARCHING or not isinstance(query, SearchQuery):
        raise wrong_payload(request, "SEARCHING with SearchQuery, or INGESTION with IngestBatch")
    check_count(query.k)
    check_filter(query.where, query.nprobe)
    return Search(request.id, checked_query(query.vector, dimension), query)


def wrong_payload(request: EngineRequest, valid: str) -> ConfigError:
    """Return the error of work that a retrieval engine cannot do."""
    return ConfigError(
        "work that a retrieval engine cannot do",
        where=f"work {request.id!r}",
        found=f"{request.kind} with {type(request.payload).__name__}",
        valid=valid,
    )


def grouped(searches: Iterable[Search], key: Callable[[Search], Hashable]) -> list[list[Search]]:
    """Return searches in groups of equal keys, in the order of their first members."""
    groups: dict[Hashable, list[Search]] = {}
    for search in searches:
        groups.setdefault(key(search), []).append(search)
    return list(groups.values())
