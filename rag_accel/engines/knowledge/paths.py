"""Paths built from hops: the same for every store, since a store gives ordered edges only.

Order of paths, everywhere: by number of hops; within a hop by the path they extend, whose order is
that of its entities as they were found; then by edge (``protocol.Edges``). An entity stands in a
path once, so cycles are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import GraphPath
from rag_accel.engines.knowledge.protocol import Edges, GraphView, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """All paths of one length ``d`` in hops, one a row.

    Args:
        entities: ``[n, d + 1], int64``.
        relations: ``[n, d], int64``.
        forward: ``[n, d], bool``, whether each edge is walked from head to tail.
    """

    entities: Ids
    relations: Ids
    forward: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.entities)

    @property
    def ends(self) -> Ids:
        """Return the last entity of each path: ``[n], int64``."""
        return self.entities[:, -1]


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The paths of one request so far, with the version of the graph that they are of.

    Args:
        view: the version of the graph.
        hops: paths of length 0 (the entities that were found), 1, 2, ...
        namespace: the tenant whose request this is.
    """

    view: GraphView
    hops: tuple[Hop, ...]
    namespace: str = ""
    _rendered: list[tuple[GraphPath, ...]] = field(
        default_factory=list[tuple[GraphPath, ...]], init=False, repr=False
    )

    @property
    def frontier(self) -> Ids:
        """Return the entities the next hop starts from, one for each longest path."""
        return self.hops[-1].ends

    def walked(self) -> tuple[GraphPath, ...]:
        """Return all paths of at least one hop, by name, in order."""
        if not self._rendered:
            self._rendered.append(
                tuple(path for hop in self.hops[1:] for path in _named(self.view, hop))
            )
        return self._rendered[0]

    def texts(self) -> tuple[str, ...]:
        """Return the text of each path of at least one hop, in order."""
        return tuple(path.text for path in self.walked())


def start(view: GraphView, entities: Ids, namespace: str = "") -> Paths:
    """Return the paths of no hops, one for each entity."""
    num = len(entities)
    none = np.empty((num, 0), np.int64)
    first = Hop(entities.reshape(num, 1), none, np.empty((num, 0), np.bool_))
    return Paths(view, (first,), namespace)


def extend(paths: Paths, edges: Edges, limit: int) -> Paths:
    """Return the paths with one hop more.

    Args:
        edges: those of ``paths.frontier``, in its order.
        limit: most paths of the new hop. Where there are more, the first edge of every path is
            kept, then the second of every path, and so on, so that no entity crowds out another.
    """
    last = paths.hops[-1]
    counts = np.diff(edges.offsets)
    source = np.repeat(np.arange(len(last)), counts)
    rank = np.arange(len(source)) - edges.offsets[source]
    unseen = (last.entities[source] != edges.others[:, None]).all(axis=1)
    kept = np.flatnonzero(unseen)
    if len(kept) > limit:
        fairest = np.lexsort((kept, rank[kept]))[:limit]
        kept = np.sort(kept[fairest])
    source = source[kept]
    grown = Hop(
        np.concatenate((last.entities[source], edges.others[kept, None]), axis=1),
        np.concatenate((last.relations[source], edges.relations[kept, None]), axis=1),
        np.concatenate((last.forward[source], edges.forward[kept, None]), axis=1),
    )
    return Paths(paths.view, (*paths.hops, grown), paths.namespace)


def _named(view: GraphView, hop: Hop) -> Sequence[GraphPath]:
    entities = _rows(view.entity_names, hop.entities)
    relations = _rows(view.relation_names, hop.relations)
    forward = map(tuple, hop.forward.tolist())
    return [GraphPath(*path) for path in zip(entities, relations, forward, strict=True)]


def _rows(names: Callable[[Ids], Sequence[str]], ids: Ids) -> list[tuple[str, ...]]:
    """Return the names of a table of ids, one tuple a row; each name is asked for once."""
    distinct, places = np.unique(ids, return_inverse=True)
    told = list(names(distinct)) if len(distinct) else []
    rows: Any = places.reshape(ids.shape).tolist()
    return [tuple(told[place] for place in row) for row in rows]
