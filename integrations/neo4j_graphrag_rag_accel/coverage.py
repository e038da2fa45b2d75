"""How much of a program of neo4j-graphrag passes the scheduler.

The library tells of no call by itself: all is known from the wrappers.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

from neo4j_graphrag_rag_accel.option_readers import parts_of
from rag_accel.interception.coverage import Coverage, CoverageRow, OpenMeters
from rag_accel.interception.covered_calls import CallTally, CoveredCalls
from rag_accel.interception.leaf_call import NotedCall
from rag_accel.interception.leaf_table import leaf_base
from rag_accel.interception.option_reach import reach_into

_NAMES = {
    "Retriever": "retriever",
    "Embedder": "embedder",
    "LLMInterface": "language model",
    "LLMInterfaceV2": "language model",
}


class Neo4jGraphRAGMeter:
    """Leaf calls by kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tally = CallTally()
        self._counts: Counter[tuple[str, str | None]] = Counter()

    def note(self, call: NotedCall) -> None:
        """Learn of a leaf call from its wrapper, and how it passed the scheduler if it did."""
        base = leaf_base(type(call.obj))
        kind = _NAMES.get(base.__name__, "other") if base is not None else "other"
        with self._lock:
            self._tally.note(kind, call)
            if not call.was_admitted:
                self._counts[kind, call.way] += 1

    def rows(self) -> list[CoverageRow]:
        """Return one row per kind of leaf that was called, sorted by kind."""
        with self._lock:
            return self._rows()

    def _rows(self) -> list[CoverageRow]:
        kinds = sorted({kind for kind, _ in self._counts})
        return [
            CoverageRow(
                kind,
                sum(count for (its_kind, _), count in self._counts.items() if its_kind == kind),
                self._counts[kind, "owned"] + self._counts[kind, "queued"],
                self._counts[kind, "admitted"],
            )
            for kind in kinds
        ]

    def calls(self) -> tuple[CoveredCalls, ...]:
        """Return the calls by class and method."""
        with self._lock:
            return self._tally.calls({row.kind: row.passed_by for row in self._rows()})


_open: OpenMeters[Neo4jGraphRAGMeter] = OpenMeters("rag_accel_neo4j_graphrag_coverage")


def coverage(program: Any = None) -> Coverage:
    """Return how much of a program passes the scheduler; in a ``with`` block, calls are counted.

    Args:
        program: whose options are looked at; the calls counted are all those made in the block, in
            this context and those copied from it.
    """
    meter = Neo4jGraphRAGMeter()
    return Coverage(meter, partial(_open.opened, meter), reach_into(program, parts_of))
