"""Names of a graph by number, in the order of the names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from rag_accel.engines.knowledge.protocol import Ids, as_ids

Triple = tuple[str, str, str]


class SortedNames:
    """Names that never change, by their places.

    Args:
        names: sorted, each once.
    """

    def __init__(self, names: list[str] | None = None) -> None:
        self.names = names or []
        # A loop, so that other threads run meanwhile: ``dict`` of an iterator keeps them waiting.
        self.places: dict[str, int] = {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def without_case(self) -> dict[str, list[str]]:
        """Return all names by what they are without case."""
        return _without_case(self.names)


class Names:
    """The names of a version: those of its base, and new ones of its edits.

    Ids ascend as names do, so that an edit numbers nothing again: with ``m`` new names, the base's
    name at place ``p`` has the id ``p * (m + 1) + m``, and the new name ``j``, which belongs before
    it, ``p * (m + 1) + j``. In arrays of all names, new ones stand behind those of the base.

    Args:
        base: the names of the base.
        names: the names that edits use.
    """

    def __init__(self, base: SortedNames, names: Iterable[str] = ()) -> None:
        self.base = base
        self.new = sorted({name for name in names if name not in base.places})
        self._step = len(self.new) + 1
        self._new_ids = {
            name: bisect_left(base.names, name) * self._step + place
            for place, name in enumerate(self.new)
        }

    def __len__(self) -> int:
        return len(self.base) + len(self.new)

    def id(self, name: str) -> int:
        """Return the id of a name, -1 if it has none."""
        place = self.base.places.get(name)
        return self._new_ids.get(name, -1) if place is None else (place + 1) * self._step - 1

    def of(self, ids: Ids) -> list[str]:
        """Return the names of ids, in their order."""
        num, old, new = len(self.base), self.base.names, self.new
        places: list[int] = self.places(ids.ravel()).tolist()
        if not new:
            return [old[place] for place in places]
        return [old[place] if place < num else new[place - num] for place in places]

    def base_ids(self, places: Ids) -> Ids:
        """Return the ids of the base's names, by their places."""
        return places * self._step + (self._step - 1) if self.new else places

    def ids(self, places: Ids) -> Ids:
        """Return the ids of names, by their places in arrays of all names."""
        ids, is_new = self.base_ids(places), places >= len(self.base)
        if is_new.any():
            ids[is_new] = as_ids(list(self._new_ids.values()))[places[is_new] - len(self.base)]
        return ids

    def places(self, ids: Ids) -> Ids:
        """Return the places of names in arrays of all names."""
        before, at = np.divmod(ids, self._step)
        return np.where(at < len(self.new), len(self.base) + at, before)

    def before(self, ids: Ids) -> Ids:
        """Return how many of the base's names come before each of these ids' names."""
        return ids // self._step

    def are_new(self, ids: Ids) -> np.ndarray:
        """Tell which ids are of new names."""
        return ids % self._step < len(self.new)

    def without_case(self, name: str) -> list[int]:
        """Return the ids of all names that differ from this one in case alone."""
        folded = name.casefold()
        parts = self.base.without_case, self._without_case
        return [self.id(alike) for part in parts for alike in part.get(folded, ())]

    @cached_property
    def _without_case(self) -> dict[str, list[str]]:
        return _without_case(self.new)


def _without_case(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.casefold(), []).append(name)
    return found
