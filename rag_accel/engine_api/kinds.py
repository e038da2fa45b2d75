"""The kinds of work an engine can execute, and the properties of each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class PrimitiveKind(enum.StrEnum):
    """The kinds of work there are (Teola Table 1, plus graph hops, pruning and user code)."""

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
    PRUNING = "PRUNING"
    CONDITION = "CONDITION"
    AGGREGATE = "AGGREGATE"
    FUNCTION = "FUNCTION"


@dataclass(frozen=True, slots=True)
class KindSpec:
    """The properties of one kind of primitive.

    Args:
        has_engine: whether an engine executes it; without one it is user code or internal code.
        made_by_passes: whether it exists only after the passes.
        owned_only: whether no callable stands in for it.
        hands_on: names what it hands to the primitive after it in the same stage, if it does.
        prefills: whether it reads a prompt and ends with a handle from which the next resumes.
        role: the argument of ``Accelerator`` whose callable does this, if there is one.
    """

    has_engine: bool = True
    made_by_passes: bool = False
    owned_only: bool = False
    hands_on: str = ""
    prefills: bool = False
    role: str = ""


KINDS: Mapping[PrimitiveKind, KindSpec] = {
    PrimitiveKind.EMBEDDING: KindSpec(hands_on="vector", role="embedder"),
    PrimitiveKind.SEARCHING: KindSpec(role="index"),
    PrimitiveKind.RERANKING: KindSpec(role="reranker"),
    PrimitiveKind.INGESTION: KindSpec(owned_only=True),
    PrimitiveKind.PREFILLING: KindSpec(hands_on="prefill", prefills=True),
    PrimitiveKind.PARTIAL_PREFILLING: KindSpec(made_by_passes=True, prefills=True),
    PrimitiveKind.FULL_PREFILLING: KindSpec(made_by_passes=True, prefills=True),
    PrimitiveKind.DECODING: KindSpec(role="llm"),
    PrimitiveKind.PARTIAL_DECODING: KindSpec(has_engine=False, made_by_passes=True),
    PrimitiveKind.EXPANDING: KindSpec(owned_only=True, hands_on="paths"),
    PrimitiveKind.PRUNING: KindSpec(role="graph"),
    PrimitiveKind.CONDITION: KindSpec(has_engine=False),
    PrimitiveKind.AGGREGATE: KindSpec(has_engine=False, made_by_passes=True),
    PrimitiveKind.FUNCTION: KindSpec(has_engine=False),
}

ROLES: Mapping[str, PrimitiveKind] = {spec.role: kind for kind, spec in KINDS.items() if spec.role}
"""What a callable does that was given under one of the standard names."""


class HasKinds(Protocol):
    """Anything that says which primitives it executes: all the graph needs of an engine."""

    @property
    def kinds(self) -> frozenset[PrimitiveKind]:
        """Return the primitive kinds it executes."""
        ...
