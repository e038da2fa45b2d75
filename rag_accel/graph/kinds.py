"""Name what an engine can execute, below every room that needs the names."""

from __future__ import annotations

import enum
from typing import Protocol


class PrimitiveKind(enum.StrEnum):
    """Name what an engine can execute (Teola Table 1, plus graph hops and opaque user code)."""

    EMBEDDING = "EMBEDDING"
    SEARCHING = "SEARCHING"
    RERANKING = "RERANKING"
    INGESTION = "INGESTION"
    PREFILLING = "PREFILLING"
    PARTIAL_PREFILLING = "PARTIAL_PREFILLING"
    FULL_PREFILLING = "FULL_PREFILLING"
    DECODING = "DECODING"
    PARTIAL_DECODING = "PARTIAL_DECODING"
    EXPANDING = "EXPANDING"
    CONDITION = "CONDITION"
    AGGREGATE = "AGGREGATE"
    FUNCTION = "FUNCTION"


class HasKinds(Protocol):
    """Be anything that says which primitives it executes: all the graph needs of an engine."""

    @property
    def kinds(self) -> frozenset[PrimitiveKind]:
        """Return the primitive kinds it executes."""
        ...
