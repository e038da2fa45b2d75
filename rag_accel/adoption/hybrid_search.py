"""Searches of a shared index by vector and by words together, on an engine that callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rag_accel.accelerator import Accelerator, RequestIdentity, Work
from rag_accel.adoption.shared_index import Hits, SharedIndex, asearch_or_plain, search_or_plain
from rag_accel.engine_api import (
    Document,
    Engine,
    EngineRequest,
    HybridQuery,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.lexical import LexicalIndex, check_text, living
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec, fuse_rankings


def hybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Return the documents nearest by vector and by words, best first; see ``HybridEngine``.

    Args:
        shared: the index; one without documents finds nothing.
        query: with the vector as the store's embeddings made it.
        spec: how the rankings are made and fused; searches of equal ones share an engine.
        own: schedules the search; None for the current run's, or the process default.

    Raises:
        ConfigError: a ``k``, weight or depth out of range, or a wrong filter, text or vector.
        EngineOutputError: a vector with NaN.
    """
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    query = _scaled(shared, query)
    plain = partial(_search_alone, lexical, spec, query)
    return search_or_plain(own, partial(_work, shared, lexical, spec, query), plain)


async def ahybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Do as ``hybrid_search`` without blocking the loop."""
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    query = _scaled(shared, query)

    async def plain() -> Hits:
        # Not on the loop: after a change, all documents are read.
        return await asyncio.to_thread(_search_alone, lexical, spec, query)

    return await asearch_or_plain(own, partial(_work, shared, lexical, spec, query), plain)


def hybrid_search_among(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, is_wanted: Callable[[Document], bool]
) -> Hits:
    """Return the best of the documents that a condition holds for; raises as ``hybrid_search``.

    They are compared one by one, here. Terms weigh as in a search of all documents.
    """
    lexical = shared.lexical(spec.lexical)
    if lexical is None:
        return ()
    spec = spec.of_query(query)
    spec.check_k(query.k)
    check_text(query.text, "text")
    snapshot, k = lexical.current(), max(0, query.k)
    known = snapshot.search(query.text, len(snapshot.documents), query.where)
    worded = [hit for hit in known if is_wanted(hit.document)]
    depth = max(spec.dense_depth, k)
    dense = shared.search_among(SearchQuery(query.vector, depth), is_wanted)
    hits = fuse_rankings(dense, worded[: max(spec.lexical_depth, k)], spec)
    return tuple(living(lexical.index, snapshot.version, hits)[:k])


def variant_of(spec: HybridSpec) -> str:
    """Return which of an index's engines searches by a specification."""
    return f"hybrid {spec}"


def _scaled(shared: SharedIndex, query: HybridQuery) -> HybridQuery:
    return replace(query, vector=shared.scaled([query.vector])[0])


def _search_alone(lexical: LexicalIndex, spec: HybridSpec, query: HybridQuery) -> Hits:
    engine = _engine(lexical, spec)
    engine.submit([EngineRequest(WorkId("alone"), "alone", PrimitiveKind.SEARCHING, query)])
    (output,) = engine.step(StepBudget())
    if output.error is not None:
        raise output.error
    return output.value


def _work(
    shared: SharedIndex,
    lexical: LexicalIndex,
    spec: HybridSpec,
    query: HybridQuery,
    identity: RequestIdentity,
) -> Work:
    # Never shared: an equal search that began before a change must not answer one after it.
    make, variant = partial(_engine, lexical, spec), variant_of(spec)
    engine = identity.accelerator.own(lexical.index, "hybrid", make, variant, holder=shared)
    return Work(engine, PrimitiveKind.SEARCHING, query)


def _engine(lexical: LexicalIndex, spec: HybridSpec) -> Engine:
    return HybridEngine(lexical.index, spec, lexical=lexical)
