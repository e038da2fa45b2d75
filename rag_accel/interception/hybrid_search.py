"""Searches of a shared index by vector and by words together, on an engine that callers share."""

from __future__ import annotations

from functools import partial

from rag_accel.accelerator import Accelerator, RequestIdentity, Work, default_accelerator
from rag_accel.engine_api import Engine, HybridQuery, PrimitiveKind
from rag_accel.engines.retrieval import DocumentIndex
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.engines.retrieval.hybrid.fusion import HybridSpec
from rag_accel.interception.identity import identity_for
from rag_accel.interception.shared_index import Hits, SharedIndex


def hybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Return the documents nearest by vector and by words, best first; see ``HybridEngine``.

    Args:
        shared: the index; one without documents finds nothing.
        query: with the vector as the store's embeddings made it.
        spec: how the rankings are made and fused; indexes of equal ones share an engine.
        own: schedules the search; None for the current run's, or the process default.

    Raises:
        ConfigError: a ``k`` out of range, or a wrong filter, text or vector.
        EngineOutputError: a vector with NaN.
    """
    identity = _identity(own)
    work = _work(shared, query, spec, identity)
    return () if work is None else identity.accelerator.leaves.compute(identity, work)


async def ahybrid_search(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, own: Accelerator | None
) -> Hits:
    """Do as ``hybrid_search`` without blocking the loop."""
    identity = _identity(own)
    work = _work(shared, query, spec, identity)
    return () if work is None else await identity.accelerator.leaves.acompute(identity, work)


def variant_of(spec: HybridSpec) -> str:
    """Return which of an index's engines searches by a specification."""
    return f"hybrid {spec}"


def _identity(own: Accelerator | None) -> RequestIdentity:
    # The ranking by words is kept by an engine, so that is asked even if nothing else is scheduled.
    return identity_for(own) or (own or default_accelerator()).anonymous()


def _work(
    shared: SharedIndex, query: HybridQuery, spec: HybridSpec, identity: RequestIdentity
) -> Work | None:
    index = shared.index
    if index is None:
        return None
    vector = shared.scaled([query.vector])[0]
    scaled = HybridQuery(vector, query.k, query.where, query.nprobe, text=query.text)
    # Never shared, as a search by vector alone.
    make, variant = partial(_engine, index, spec), variant_of(spec)
    engine = identity.accelerator.own(index, "hybrid", make, variant, holder=shared)
    return Work(engine, PrimitiveKind.SEARCHING, scaled)


def _engine(index: DocumentIndex, spec: HybridSpec) -> Engine:
    return HybridEngine(index, spec)
