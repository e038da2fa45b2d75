"""Checks of submitted searches and ingestions, and which searches can share a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    WorkId,
)
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.vectors.checks import check_count, check_filter, checked_query
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.errors import ConfigError

SearchT = TypeVar("SearchT")

VALID_WORK = "SEARCHING with SearchQuery, or INGESTION with IngestBatch"


@dataclass(frozen=True, slots=True)
class Search:
    """One valid search; ``vector: [dim], float32``. Other fields are as in ``EngineRequest``."""

    id: WorkId
    vector: Vectors
    query: SearchQuery
    provisional: bool = False
    namespace: str = ""
    request_id: str = ""

    def group_key(self) -> Hashable:
        """Return what searches of one call have in common.

        A call fetches for its largest k, so ks are grouped by their number of bits: none fetches
        more than twice what it asked for.
        """
        return (
            int(self.query.k).bit_length(),
            filter_condition(self.query.where, self.id),
            self.query.nprobe,
        )


def filter_condition(where: Mapping[str, object] | None, work: WorkId) -> Hashable:
    """Return what equal filters have in common, and no others.

    A filter on an unhashable value is a condition of its own.
    """
    try:
        return frozenset((where or {}).items())
    except TypeError:
        return work


def ingested(index: DocumentIndex, request: EngineRequest, valid: str) -> EngineOutput:
    """Take the documents of an ingestion; ``valid`` names the work that the engine can do."""
    batch = request.payload
    try:
        if not isinstance(batch, IngestBatch):
            raise wrong_payload(request, valid)
        index.add(batch.documents, batch.vectors)
    except Exception as error:
        return EngineOutput(request.id, "error", error=error)
    ids = tuple(document.id for document in batch.documents)
    return EngineOutput(request.id, "final", value=ids)


def checked_search(request: EngineRequest, dimension: int) -> Search:
    """Return the search of a request.

    Raises:
        ConfigError: another kind of work, or a wrong shape, ``k``, ``where`` or ``nprobe``.
        EngineOutputError: the query holds NaN or an infinity.
    """
    query = request.payload
    if request.kind is not PrimitiveKind.SEARCHING or not isinstance(query, SearchQuery):
        raise wrong_payload(request, VALID_WORK)
    check_count(query.k)
    if query.where is not None or query.nprobe is not None:
        check_filter(query.where, query.nprobe)
    vector = checked_query(query.vector, dimension)
    names = request.namespace, request.request_id
    return Search(request.id, vector, query, request.provisional, *names)


def checked_searches(
    requests: Iterable[EngineRequest], dimension: int
) -> tuple[list[Search], list[EngineOutput]]:
    """Return the valid searches of requests, and an ``error`` for each other request."""
    searches, errors = list[Search](), list[EngineOutput]()
    for request in requests:
        try:
            searches.append(checked_search(request, dimension))
        except Exception as error:
            errors.append(EngineOutput(request.id, "error", error=error))
    return searches, errors


def wrong_payload(request: EngineRequest, valid: str) -> ConfigError:
    """Return the error of work that a retrieval engine cannot do."""
    return ConfigError(
        "work that a retrieval engine cannot do",
        where=f"work {request.id!r}",
        found=f"{request.kind} with {type(request.payload).__name__}",
        valid=valid,
    )


def grouped(searches: Iterable[SearchT], key: Callable[[SearchT], Hashable]) -> list[list[SearchT]]:
    """Return searches in groups of equal keys, in the order of their first members."""
    searches = list(searches)
    if len(searches) == 1:
        return [searches]
    groups: dict[Hashable, list[SearchT]] = {}
    for search in searches:
        groups.setdefault(key(search), []).append(search)
    return list(groups.values())
