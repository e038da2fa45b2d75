"""Which triplets of a list touch which nodes, for stores that look through all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]

Triplet = tuple[str, str, str]
"""Names of a subject, a relation and an object."""


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
        subjects = np.fromiter((of_name(one[0], len(numbers)) for one in triplets), np.int64, count)
        objects = np.fromiter((of_name(one[2], len(numbers)) for one in triplets), np.int64, count)
        self._numbers = numbers
        self._objects = objects
        ends = np.concatenate((subjects, objects))
        order = np.argsort(ends, kind="stable")
        self._places = order % max(count, 1)
        self._starts = np.searchsorted(ends[order], np.arange(len(numbers) + 1))

    def touching(self, names: Iterable[str]) -> Places:
        """Return the places, ascending, of triplets with one of these nodes at either end."""
        known = {self._numbers[name] for name in names if name in self._numbers}
        return self._at(known)

    def hops(self, names: Iterable[str], depth: int) -> Iterator[Places]:
        """Yield the places of each hop: what touches the nodes, then what touches their objects.

        Each hop goes on from the objects of the triplets that the one before it has found. The
        second finds those of the first again, as far as they touch their own objects, which all
        do; from the third on, what an earlier one but the first has found is left out.
        """
        found = self.touching(names)
        seen = np.zeros(len(self.triplets), dtype=bool)
        for hop in range(depth):
            if not len(found):
                return
            yield found
            if hop + 1 < depth:
                found = self._at(np.unique(self._objects[found]).tolist())
                found = found[~seen[found]]
                seen[found] = True

    def _at(self, numbers: Iterable[int]) -> Places:
        parts = [self._places[self._starts[one] : self._starts[one + 1]] for one in numbers]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
