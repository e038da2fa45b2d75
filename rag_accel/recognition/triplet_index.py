"""An index of triplets by their nodes, for stores that scan their whole list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
