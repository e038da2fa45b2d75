"""The interface of a knowledge graph, whatever stores it.

A store answers two questions about one version of its graph, both for many requests at once: the
entities that are meant (``find``), and the edges they have (``expand``). ``paths`` builds paths
from the answers, so graphs with the same triples give the same paths in the same order.

Names are interned: an entity and a relation are an ``int64`` each, valid in the view that gave it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import Direction, LinkQuery

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Expansion:
    """A request for the edges of entities.

    Args:
        entities: ``[n], int64``, from which to go; an entity may stand in it more than once.
        relations: names of the relations to follow; ``None`` follows all, ``()`` none.
        direction: along edges (``out``), against them (``in``) or both ways.
        fan_out: most edges of one entity in one direction, at least 0.
    """

    entities: Ids
    relations: tuple[str, ...] | None = None
    direction: Direction = "both"
    fan_out: int = 32


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The edges of the entities of one ``Expansion``, grouped by entity in its order.

    Those of entity ``i`` are ``[offsets[i]:offsets[i + 1]]``: edges that leave it first, then edges
    that come in; each by relation name, then by the other end's name, by code points (as Python
    compares strings). The first ``fan_out`` of each direction are kept, after relations were
    chosen. A triple counts once however often it was stored, and self-loops are left out.

    Args:
        offsets: ``[n + 1], int64``.
        relations: ``[m], int64``, ids of relations.
        others: ``[m], int64``, ids of the entities at the other end.
        forward: ``[m], bool``, whether the edge leaves the entity asked for.
    """

    offsets: Ids
    relations: Ids
    others: Ids
    forward: NDArray[np.bool_]


class GraphView(Protocol):
    """One version of a graph; all steps of a request use the same one.

    Called on the engine's worker thread only, several requests in one call. A call that raises
    fails those requests alone that raise when asked again one by one. A ``RemoteView`` is called on
    other threads, and says of an error whether it would meet all.
    """

    @property
    def version(self) -> Hashable:
        """Return a value that differs from that of every other version of this graph."""
        ...

    def find(self, queries: Sequence[LinkQuery]) -> Sequence[Ids]:
        """Return the entities each query means, best first, at most its ``k``, each once.

        Equally good entities stand in the order of their names. Unknown names mean nothing: the
        result may be empty.

        Raises:
            GraphLinkError: for a search by vector without vectors, or of another dimension.
        """
        ...

    def expand(self, expansions: Sequence[Expansion]) -> Sequence[Edges]:
        """Return the edges of each expansion; a store makes one round trip for all of them."""
        ...

    def entity_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of entities."""
        ...

    def relation_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of relations."""
        ...

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        """Return the texts of entities, empty where there is none."""
        ...


@runtime_checkable
class RemoteView(GraphView, Protocol):
    """A view of a graph on a server, which can be slow and out of reach. Thread-safe.

    ``time_s`` is how long the server may take, in seconds, where that is less than the graph's own
    limit.
    """

    def find(self, queries: Sequence[LinkQuery], time_s: float | None = None) -> Sequence[Ids]:
        """Return the entities each query means, as ``GraphView.find`` does."""
        ...

    def expand(
        self, expansions: Sequence[Expansion], time_s: float | None = None
    ) -> Sequence[Edges]:
        """Return the edges of each expansion, however many the server has to read for them."""
        ...

    def expand_small(
        self, expansions: Sequence[Expansion], time_s: float | None = None
    ) -> Sequence[Edges | None]:
        """Return the edges of each expansion, ``None`` where the server would read too many."""
        ...

    def is_large(self, expansion: Expansion) -> bool:
        """Tell whether an earlier answer showed that ``expand_small`` would give ``None``."""
        ...

    def is_down(self, error: BaseException) -> bool:
        """Tell whether an error would meet every request, so that none is asked again alone."""
        ...


class KnowledgeGraph(Protocol):
    """A store of triples ``(head, relation, tail)``."""

    def view(self) -> GraphView:
        """Return the version that a request beginning now is to see; cheap.

        The same object is returned until something changes, so that requests with equal views
        share calls.

        Raises:
            ClosedError: after ``close``.
        """
        ...

    def close(self) -> None:
        """Free the graph's memory; objects given to it stay the caller's."""
        ...


@runtime_checkable
class RemoteGraph(Protocol):
    """A ``KnowledgeGraph`` on a server, which answers several queries at once."""

    @property
    def in_flight(self) -> int:
        """Return how many queries of one engine may be under way at once, from 2 on."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Return after how many seconds the server ends a query, ``None`` if it may not."""
        ...

    def for_engine(self) -> KnowledgeGraph:
        """Return this graph with views of its own, each a ``RemoteView``, for one more engine."""
        ...


def no_edges(num_entities: int) -> Edges:
    """Return that none of so many entities has an edge."""
    none = np.empty(0, np.int64)
    return Edges(np.zeros(num_entities + 1, np.int64), none, none, np.empty(0, np.bool_))


def as_ids(values: Any) -> Ids:
    """Return numbers as ids: ``[n], int64``."""
    return np.asarray(values, dtype=np.int64).reshape(-1)
