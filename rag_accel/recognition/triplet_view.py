"""Triplets of a foreign store as a knowledge graph, so that the hops of requests share steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import MOST_NUMBER, ExpandBatch, LinkQuery
from rag_accel.engines.knowledge.paths import Paths, start
from rag_accel.engines.knowledge.protocol import Edges, Expansion, GraphView, Ids, as_ids
from rag_accel.recognition.triplet_index import Numbers, Places, Touching, TripletIndex


class TripletView:
    """A snapshot of a store's triplets as a ``GraphView``, one relation a triplet.

    The id of a relation is the place of its triplet, so that what a hop finds is given back in the
    store's own order. Differs: the edges of an entity stand in that order, too, not in that of
    their names.

    Args:
        index: of the triplets.
        is_current: tells whether the store still holds them, asked once for all requests of a step;
            None for a view that does not ask.
    """

    def __init__(self, index: TripletIndex, is_current: Callable[[], bool] | None = None) -> None:
        self.index = index
        self._is_current = is_current
        #: whether the store was found to hold something else; then no expansion finds anything
        self.is_stale = False

    @property
    def version(self) -> Hashable:
        """Return the view itself: each state of a store has its own."""
        return self

    def find(self, queries: Sequence[LinkQuery]) -> Sequence[Ids]:
        """Return the entities of the names asked for; other searches find nothing here."""
        return [self._named(query)[: query.k] for query in queries]

    def expand(self, expansions: Sequence[Expansion]) -> Sequence[Edges]:
        """Return the edges of each expansion, none where the store holds something else by now."""
        if self._is_current is not None and not self.is_stale:
            self.is_stale = not self._is_current()
        return [self._edges(expansion) for expansion in expansions]

    def entity_names(self, ids: Ids) -> Sequence[str]:
        return [self.index.names[number] for number in ids]

    def relation_names(self, ids: Ids) -> Sequence[str]:
        return [self.index.triplets[place][1] for place in ids]

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        return [""] * len(ids)

    def _named(self, query: LinkQuery) -> Ids:
        found = [self.index.numbers([name]) for name in dict.fromkeys(query.names or ())]
        return np.concatenate(found) if found else as_ids(())

    def _edges(self, expansion: Expansion) -> Edges:
        ends = self.index.ends(expansion.entities)
        kept = np.full(len(ends.places), not self.is_stale)
        if expansion.direction != "both":
            kept &= ends.forward == (expansion.direction == "out")
        if expansion.relations is not None:
            kept &= np.isin(self.relation_names(ends.places), expansion.relations)
        if expansion.fan_out < len(kept):
            kept &= _rank(ends, kept) < expansion.fan_out
        before = np.concatenate(([0], np.cumsum(kept)))
        return Edges(before[ends.offsets], ends.places[kept], ends.others[kept], ends.forward[kept])


def _rank(ends: Touching, kept: NDArray[np.bool_]) -> Numbers:
    """Return which of the kept edges of its node and direction each is."""
    owner = np.repeat(np.arange(len(ends.offsets) - 1), np.diff(ends.offsets))
    starts = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(ends.forward, prepend=False))
    before = np.cumsum(kept) - kept
    return before - np.repeat(before[starts], np.diff(starts, append=len(kept)))


class TripletGraph:
    """The triplets of one store as a ``KnowledgeGraph``, as of its latest snapshot."""

    def __init__(self) -> None:
        self._view: TripletView | None = None
        self._callers: set[object] = set()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Count one more caller that searches the store, in whatever way, meanwhile."""
        caller = object()
        self._callers.add(caller)
        try:
            yield
        finally:
            self._callers.discard(caller)

    def has_several_callers(self) -> bool:
        """Tell whether there is anyone to share a step with."""
        return len(self._callers) > 1

    def show(self, view: TripletView) -> None:
        """Take a newer state of the store."""
        self._view = view

    def view(self) -> GraphView:
        """Return the newest state."""
        assert self._view is not None, "an engine is made of a store whose triplets were indexed"
        return self._view

    def close(self) -> None:
        """Do nothing: the triplets are the store's."""


def hop_from(view: TripletView, numbers: Numbers, namespace: str) -> ExpandBatch:
    """Return what to ask the engine for: all triplets that touch these nodes."""
    return ExpandBatch(start(view, numbers, namespace), fan_out=MOST_NUMBER, limit=MOST_NUMBER)


def places_in(paths: Paths, index: TripletIndex) -> Places:
    """Return the places, ascending, of the triplets that such a hop has found.

    Args:
        paths: what the engine gave; loops are in no path, and are added here.
        index: of the triplets.
    """
    first, last = paths.hops
    return np.union1d(last.relations[:, 0], index.loops(first.ends))
