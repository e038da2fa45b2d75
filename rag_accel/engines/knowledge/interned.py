"""Names by number, and the order of numbers by name, without a sort of all names at each edit."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from rag_accel.engines.knowledge.protocol import Ids, as_ids

Triple = tuple[str, str, str]


class InternedNames:
    """Names in the order of their ids; a name keeps its id, and none is ever taken out.

    Written by one thread at a time, the graph's; read by any meanwhile. A reader looks only at the
    ids below the number that its version was made with.

    Args:
        names: each once.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = list(names)
        self.ids: dict[str, int] = {name: place for place, name in enumerate(self.names)}
        #: for what readers make of the names when they first need it
        self.lock = threading.Lock()
        self._folded: dict[str, tuple[int, ...]] = {}
        self._num_folded = 0

    def __len__(self) -> int:
        return len(self.names)

    def id(self, name: str) -> int:
        """Return the id of a name, a new one where it has none."""
        known = self.ids.get(name)
        if known is None:
            known = len(self.names)
            self.names.append(name)
            self.ids[name] = known
        return known

    def of(self, ids: Ids) -> list[str]:
        """Return the names of ids, in their order."""
        places: list[int] = ids.ravel().tolist()
        return [self.names[place] for place in places]

    def without_case(self, name: str) -> tuple[int, ...]:
        """Return the ids of all names that differ from this one in case alone."""
        with self.lock:
            for place in range(self._num_folded, len(self.names)):
                folded = self.names[place].casefold()
                self._folded[folded] = (*self._folded.get(folded, ()), place)
                self._num_folded = place + 1
            return self._folded.get(name.casefold(), ())


class Order:
    """The ids of a table in the order of their names.

    Args:
        table: the names.
        ids: ``[n], int64``, the first ``n`` ids of the table, sorted by name.
        ranks: ``[n], int64``, the place of each id among them.
        new: ``[m], int64``, the ids from ``n`` on, sorted by name.
        places: ``[m], int64``, where each of them belongs among ``ids``, ascending.
    """

    def __init__(self, table: InternedNames, ids: Ids, ranks: Ids, new: Ids, places: Ids) -> None:
        self.table = table
        self.ids, self.ranks = ids, ranks
        self.new, self.places = new, places
        #: where each id behind these belongs among ``ids``, as far as that was looked up
        self._later: list[int] = []
        #: of a new id, by its distance from the first one
        self._at = np.empty(len(new), np.int64)
        self._new_ranks = np.empty(len(new), np.int64)
        self._at[new - len(ids)] = places
        self._new_ranks[new - len(ids)] = places * (len(new) + 1) + np.arange(len(new))

    def __len__(self) -> int:
        return len(self.ids) + len(self.new)

    @classmethod
    def of(cls, table: InternedNames) -> Order:
        none = np.empty(0, np.int64)
        return cls(table, none, none, none, none).extended().merged()

    def extended(self) -> Order:
        """Return the order with all ids that the table has by now; ``new`` must be empty."""
        names, num, later = self.table.names, len(self.ids), self._later
        if not num:
            later += [0] * (len(names) - len(later))
        for place in range(num + len(later), len(names)):
            later.append(bisect_left(self.ids, names[place], key=names.__getitem__))
        new = as_ids(sorted(range(num, len(names)), key=names.__getitem__))
        return Order(self.table, self.ids, self.ranks, new, as_ids(later)[new - num])

    def merged(self) -> Order:
        """Return the same order with nothing new in it."""
        if not len(self.new):
            return self
        ids = np.insert(self.ids, self.places, self.new)
        ranks = np.empty(len(ids), np.int64)
        ranks[ids] = np.arange(len(ids))
        none = np.empty(0, np.int64)
        return Order(self.table, ids, ranks, none, none)

    def rank(self, ids: Ids) -> Ids:
        """Return numbers that are in the order of the names of these ids."""
        if not len(self.new):
            return self.ranks[ids]
        num, step = len(self.ids), len(self.new) + 1
        ranks = np.empty(ids.shape, np.int64)
        is_old = ids < num
        ranks[is_old] = self.ranks[ids[is_old]] * step + len(self.new)
        ranks[~is_old] = self._new_ranks[ids[~is_old] - num]
        return ranks

    def before(self, ids: Ids) -> Ids:
        """Return how many of the old names come before each of these ids' names."""
        found = np.empty(ids.shape, np.int64)
        is_old = ids < len(self.ids)
        found[is_old] = self.ranks[ids[is_old]]
        found[~is_old] = self._at[ids[~is_old] - len(self.ids)]
        return found


def sorted_names(order: Order, is_there: np.ndarray) -> Sequence[str]:
    """Return the names of ids that are there, ``[len(order)], bool``, sorted."""
    ids = order.merged().ids
    return order.table.of(ids[is_there[ids]])
