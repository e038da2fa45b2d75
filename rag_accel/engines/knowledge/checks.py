"""Refusals of work that the engine of a knowledge graph could not do."""

from __future__ import annotations

from typing import Any, get_args

from rag_accel.engine_api import (
    MOST_NUMBER,
    Direction,
    EngineRequest,
    ExpandBatch,
    IngestBatch,
    LinkQuery,
    PrimitiveKind,
    PruneBatch,
)
from rag_accel.engines.knowledge.paths import Paths
from rag_accel.errors import EngineError

_PAYLOADS = {
    PrimitiveKind.SEARCHING: LinkQuery,
    PrimitiveKind.EXPANDING: ExpandBatch,
    PrimitiveKind.PRUNING: PruneBatch,
    PrimitiveKind.INGESTION: IngestBatch,
}
_NUMBERS = ("k", "fan_out", "limit")


def fault(request: EngineRequest) -> EngineError | None:
    """Return the error of malformed work, if it is malformed."""
    payload = request.payload
    valid = _PAYLOADS.get(request.kind)
    if valid is None or not isinstance(payload, valid):
        return EngineError(
            "a knowledge engine got something that it cannot do",
            found=f"{request.kind} with {type(payload).__name__}",
            valid=", ".join(f"{kind} with {kept.__name__}" for kind, kept in _PAYLOADS.items()),
        )
    for name in _NUMBERS:
        value = getattr(payload, name, 0)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MOST_NUMBER:
            valid = f"an int from 0 to {MOST_NUMBER}"
            return EngineError("bad bound", where=name, found=repr(value), valid=valid)
    if isinstance(payload, LinkQuery):
        return _link_fault(payload)
    return None if isinstance(payload, IngestBatch) else _paths_fault(request)


def _link_fault(query: LinkQuery) -> EngineError | None:
    given = [name for name in ("vector", "text", "names") if getattr(query, name) is not None]
    if len(given) == 1:
        return None
    return EngineError(
        "a search for entities must say what it looks for",
        found=", ".join(given) or "nothing",
        valid="one of vector, text and names",
    )


def _paths_fault(request: EngineRequest) -> EngineError | None:
    payload: Any = request.payload
    if not isinstance(payload.paths, Paths):
        return EngineError(
            "these are no paths of a knowledge graph",
            found=type(payload.paths).__name__,
            valid="what the search or the hop before gave",
        )
    if payload.paths.namespace != request.namespace:
        return EngineError("these paths are another tenant's", where=str(request.id))
    if isinstance(payload, ExpandBatch) and payload.direction not in get_args(Direction):
        return EngineError(
            "bad direction", found=repr(payload.direction), valid=", ".join(get_args(Direction))
        )
    return None
