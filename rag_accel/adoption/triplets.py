"""Triplets of a foreign store by their ends, and as a graph whose hops requests share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from rag_accel.engine_api import MOST_NUMBER, ExpandBatch, LinkQuery
from rag_accel.engines.knowledge.paths import Paths, start
from rag_accel.engines.knowledge.protocol import Edges, Expansion, GraphView, Ids, as_ids

Places = npt.NDArray[np.int64]

Numbers = npt.NDArray[np.int64]
"""Nodes, by numbers that are valid in one index."""

Triplet = tuple[str, str, str]
"""Names of a subject, a relation and an object."""


@dataclass(frozen=True, slots=True, eq=False)
class Touching:
    """The ends of triplets that are nodes of a list, grouped by node in the order of the list.

    Those of node ``i`` are ``[offsets[i]:offsets[i + 1]]``: triplets that it is the subject of,
    then those that it is the object of; each in the order of the triplets.

    Args:
        offsets: ``[n + 1], int64``.
        places: ``[m], int64``, of the triplets.
        others: ``[m], int64``, numbers of the nodes at the other end.
        forward: ``[m], bool``, whether the node is the subject.
    """

    offsets: Numbers
    places: Places
    others: Numbers
    forward: npt.NDArray[np.bool_]


class TripletIndex:
    """The places of triplets by the nodes at their ends.

    Args:
        triplets: in the order in which they are found.
    """

    def __init__(self, triplets: Sequence[Triplet]) -> None:
        self.triplets = triplets
        numbers: dict[str, int] = {}
        of_name = numbers.setdefault
        count = len(triplets)
        subjects = np.fromiter(
            (of_name(triplet[0], len(numbers)) for triplet in triplets), np.int64, count
        )
        objects = np.fromiter(
            (of_name(triplet[2], len(numbers)) for triplet in triplets), np.int64, count
        )
        self.names = tuple(numbers)
        self._numbers = numbers
        self._subjects, self._objects = subjects, objects
        self._loops = np.flatnonzero(subjects == objects)
        ends = np.concatenate((subjects, objects))
        order = np.argsort(ends, kind="stable")
        self._places = order % max(count, 1)
        self._forward = order < count
        self._starts = np.searchsorted(ends[order], np.arange(len(numbers) + 1))

    def numbers(self, names: Iterable[str]) -> Numbers:
        """Return the numbers, ascending, of those of these nodes that are the end of a triplet."""
        known = {self._numbers[name] for name in names if name in self._numbers}
        return np.array(sorted(known), dtype=np.int64)

    def objects(self, places: Places) -> Numbers:
        """Return the nodes, ascending, that are the object of one of these triplets."""
        return np.unique(self._objects[places])

    def touching(self, names: Iterable[str]) -> Places:
        """Return the places, ascending, of triplets with one of these nodes at either end."""
        return self.around(self.numbers(names))

    def around(self, numbers: Numbers) -> Places:
        """Do as ``touching`` for nodes by number."""
        return np.unique(self._places[self._at(numbers)[1]])

    def loops(self, numbers: Numbers) -> Places:
        """Return the places of triplets that lead from one of these nodes to itself."""
        return self._loops[np.isin(self._subjects[self._loops], numbers)]

    def ends(self, numbers: Numbers) -> Touching:
        """Return what touches each of these nodes; a triplet between two of them stands in both.

        One that leads from a node to itself is left out, see ``loops``.
        """
        offsets, at = self._at(numbers)
        places, forward = self._places[at], self._forward[at]
        others = np.where(forward, self._objects[places], self._subjects[places])
        kept = others != np.repeat(numbers, np.diff(offsets))
        if not kept.all():
            before = np.concatenate(([0], np.cumsum(kept)))
            offsets = before[offsets]
            places, forward, others = places[kept], forward[kept], others[kept]
        return Touching(offsets, places, others, forward)

    def _at(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the ends of each node stand: offsets ``[n + 1]``, and their positions."""
        starts = self._starts[numbers]
        lengths = self._starts[numbers + 1] - starts
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return offsets, np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


class TripletWalk:
    """A walk over the triplets around nodes: what touches them, then what touches their objects.

    Each hop goes on from the objects of the triplets that the one before it has found. The second
    finds those of the first again, as far as they touch their own objects, which all do; from the
    third on, what an earlier one but the first has found is left out.

    Args:
        index: of the triplets.
        names: of the nodes to start from.
        depth: most hops.
    """

    def __init__(self, index: TripletIndex, names: Iterable[str], depth: int) -> None:
        self._index = index
        self._left = depth
        self._seen: npt.NDArray[np.bool_] | None = None
        #: the nodes from which the next hop is made; none where the walk is over
        self.frontier = self._unless_over(index.numbers(names))

    def take(self, around: Places) -> Places:
        """Return the places of a hop, given all those that touch the frontier; move on."""
        found, seen = around, self._seen
        if seen is None:
            self._seen = np.zeros(len(self._index.triplets), dtype=bool)
        else:
            found = found[~seen[found]]
            seen[found] = True
        self._left -= 1
        self.frontier = self._unless_over(self._index.objects(found))
        return found

    def _unless_over(self, numbers: Numbers) -> Numbers:
        return numbers if self._left > 0 else numbers[:0]


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
