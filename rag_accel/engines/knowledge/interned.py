"""Triples by number, and the same triples after an edit without a look at each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rag_accel.engines.knowledge.protocol import Ids, as_ids
from rag_accel.engines.knowledge.words import NameWords

Triple = tuple[str, str, str]


class Names:
    """Sorted names; an id is a place among them.

    Args:
        names: each once, in any order.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names: Sequence[str] = sorted(names)
        self.ids = {name: place for place, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def with_more(self, names: Iterable[str]) -> Names:
        """Return these and others; this very object where all are known."""
        new = {name for name in names if name not in self.ids}
        return Names((*self.names, *new)) if new else self

    def only(self, is_used: np.ndarray) -> Names:
        """Return those that are used, ``[n], bool``; this very object where all are."""
        if is_used.all():
            return self
        return Names(self.names[place] for place in np.flatnonzero(is_used).tolist())

    def ids_in(self, other: Names) -> Ids:
        """Return the id of each of these names among others, -1 where it is not there."""
        return as_ids([other.ids.get(name, -1) for name in self.names])

    @cached_property
    def folded(self) -> dict[str, int]:
        """Return ids by names without case; the first of several in the order of names."""
        return {name.casefold(): place for place, name in reversed([*enumerate(self.names)])}

    @cached_property
    def words(self) -> NameWords:
        """Return the words of the names."""
        return NameWords(self.names)


@dataclass(frozen=True, slots=True, eq=False)
class InternedTriples:
    """Triples whose names are numbers.

    Args:
        entities: the names of heads and tails, and of entities that only have a text.
        relations: the names of relations.
        rows: ``[n, 3], int64``: head, relation and tail.
    """

    entities: Names
    relations: Names
    rows: Ids

    def edited(
        self, added: Collection[Triple], removed: Collection[Triple], told: Collection[str]
    ) -> InternedTriples:
        """Return the triples after an edit.

        Args:
            added: triples that are not there.
            removed: triples that are there.
            told: all entities with a text.
        """
        gone = self._rows_of(removed)
        ends = (end for one in added for end in (one[0], one[2]))
        entities = self.entities.with_more((*ends, *told))
        relations = self.relations.with_more(one[1] for one in added)
        kept = self._without(gone)._renamed(entities, relations)
        whole = InternedTriples(
            entities, relations, np.concatenate((kept.rows, kept._rows_of(added)))
        )
        return whole._without_unused(told)

    def _rows_of(self, triples: Collection[Triple]) -> Ids:
        entities, relations = self.entities.ids, self.relations.ids
        rows = [(entities[head], relations[name], entities[tail]) for head, name, tail in triples]
        return as_ids(rows).reshape(-1, 3)

    def _without(self, gone: Ids) -> InternedTriples:
        if not len(gone):
            return self
        kept = ~np.isin(self._keys(self.rows), self._keys(gone))
        return InternedTriples(self.entities, self.relations, self.rows[kept])

    def _keys(self, rows: Ids) -> Ids:
        heads, relations, tails = rows.T
        return (heads * len(self.relations) + relations) * len(self.entities) + tails

    def _renamed(self, entities: Names, relations: Names) -> InternedTriples:
        """Return the same triples by the ids of other names."""
        rows = self.rows.copy()
        if entities is not self.entities:
            rows[:, ::2] = self.entities.ids_in(entities)[rows[:, ::2]]
        if relations is not self.relations:
            rows[:, 1] = self.relations.ids_in(relations)[rows[:, 1]]
        return InternedTriples(entities, relations, rows)

    def _without_unused(self, told: Collection[str]) -> InternedTriples:
        used = np.zeros(len(self.entities), np.bool_)
        used[self.rows[:, ::2]] = True
        used[[self.entities.ids[name] for name in told]] = True
        named = np.zeros(len(self.relations), np.bool_)
        named[self.rows[:, 1]] = True
        return self._renamed(self.entities.only(used), self.relations.only(named))


NOTHING = InternedTriples(Names(()), Names(()), np.empty((0, 3), np.int64))
