"""Triples as compressed adjacency: the edges of any number of entities by array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.names import Names
from rag_accel.engines.knowledge.protocol import Edges, Ids

OUT, IN, LOOP = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class EdgeRows:
    """Edges of one direction, each with its place among those of an adjacency.

    Args:
        ends: ``[n], int64``, the entity that each edge belongs to.
        relations: ``[n], int64``.
        others: ``[n], int64``, the entity at the other end.
        places: ``[n], int64``, where each stands, or where it is to be put in before.
    """

    ends: Ids
    relations: Ids
    others: Ids
    places: Ids

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, kept: Ids | NDArray[np.bool_]) -> EdgeRows:
        """Return some of them, by number or by a mask."""
        return EdgeRows(self.ends[kept], self.relations[kept], self.others[kept], self.places[kept])


class Adjacency:
    """The edges of every entity, in the order that ``Edges`` states; entities are places of names.

    Edges that leave come before edges that come in, and both before those of an entity to itself,
    which no expansion follows. Within each they are sorted by entity, relation and other end.

    Args:
        ways: the edges of each direction, and those of entities to themselves, in order.
        num_entities, num_relations: places are below it.
    """

    def __init__(self, ways: Sequence[EdgeRows], num_entities: int, num_relations: int) -> None:
        self.num_entities, self.num_relations = num_entities, num_relations
        self.others = np.concatenate([way.others for way in ways])
        self.relations = np.concatenate([way.relations for way in ways])
        self._keys = [way.ends * max(1, num_relations) + way.relations for way in ways]
        #: where the edges of each direction begin, and the end of all
        self.firsts: list[int] = np.cumsum([0, *map(len, ways)]).tolist()
        #: where the edges of each entity begin, by direction
        self.starts = [
            np.concatenate(([0], np.cumsum(np.bincount(rows.ends, minlength=num_entities)))) + first
            for rows, first in zip(ways, self.firsts, strict=False)
        ]

    def __len__(self) -> int:
        """Return the number of edges, those between two entities twice."""
        return len(self.others)

    @property
    def num_triples(self) -> int:
        """Return the number of edges, each once."""
        return len(self) - self.firsts[IN]

    @property
    def degrees(self) -> Ids:
        """Return how many edges each entity has: ``[num_entities], int64``."""
        return np.sum([np.diff(starts) for starts in self.starts], axis=0)

    def ranges(self, way: int, entities: Ids, relations: Ids | None, most: int) -> tuple[Ids, Ids]:
        """Return where the first edges of each entity begin and how many: ``[n, m], int64`` each.

        Args:
            way: their direction.
            entities: ``[n], int64``.
            relations: ``[m], int64``, ascending, to follow; None follows all, in one range.
            most: edges of an entity.
        """
        if relations is None:
            starts = self.starts[way]
            low, high = starts[entities][:, None], starts[entities + 1][:, None]
        else:
            wanted = entities[:, None] * max(1, self.num_relations) + relations[None, :]
            low, high = (
                np.searchsorted(self._keys[way], wanted, side) + self.firsts[way]
                for side in ("left", "right")
            )
        counts = high - low
        before = np.cumsum(counts, axis=1) - counts
        return low, np.clip(most - before, 0, counts)

    def located(
        self, way: int, rows: EdgeRows, entities: Names, relations: Names
    ) -> tuple[EdgeRows, NDArray[np.bool_]]:
        """Return edges, whose numbers are ids of a version, with their places, and which are there.

        Args:
            way: their direction.
            rows: the edges; names of theirs may be newer than this adjacency.
            entities, relations: the names of the version.
        """
        first, keys = self.firsts[way], self._keys[way]
        is_new, is_unknown = entities.are_new(rows.ends), relations.are_new(rows.relations)
        wanted = entities.before(rows.ends) * max(1, self.num_relations)
        wanted += np.where(is_new, 0, relations.before(rows.relations))
        low = np.searchsorted(keys, wanted, "left") + first
        stop = np.where(is_new | is_unknown, low, np.searchsorted(keys, wanted, "right") + first)
        high, others = stop.copy(), entities.before(rows.others)
        while (is_open := low < high).any():
            middle = (low + high) // 2
            is_less = is_open & (self.others[np.where(is_open, middle, 0)] < others)
            low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, middle)
        is_there = (low < stop) & ~entities.are_new(rows.others)
        is_there[is_there] = self.others[low[is_there]] == others[is_there]
        return EdgeRows(rows.ends, rows.relations, rows.others, low), is_there

    def edited(
        self, way: int, added: EdgeRows, removed: Ids, entities: Ids, relations: Ids
    ) -> EdgeRows:
        """Return the edges of a direction with some put in, without others, by other numbers.

        Args:
            way: the direction.
            added: those to put in, in order, by the new numbers, with their places here.
            removed: the places of others, ascending.
            entities, relations: the new number of each, ascending for those that are left.
        """
        first, stop = self.firsts[way : way + 2]
        kept = np.ones(stop - first, np.bool_)
        kept[removed - first] = False
        places = added.places - first - np.searchsorted(removed, added.places)
        ends = np.repeat(np.arange(self.num_entities), np.diff(self.starts[way]))
        columns = (
            (entities, ends, added.ends),
            (relations, self.relations[first:stop], added.relations),
            (entities, self.others[first:stop], added.others),
        )
        ends, relations, others = (
            np.insert(numbers[old[kept]], places, new) for numbers, old, new in columns
        )
        return EdgeRows(ends, relations, others, np.empty(0, np.int64))


def flat(starts: Ids, counts: Ids) -> Ids:
    """Return the numbers of all ranges, one range after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


def split(edges: Edges, sizes: Sequence[int]) -> list[Edges]:
    """Return the edges of several expansions that were made as one, ``sizes`` entities each."""
    found: list[Edges] = []
    first = 0
    for size in sizes:
        offsets = edges.offsets[first : first + size + 1]
        low, high = offsets[0], offsets[-1]
        found.append(
            Edges(
                offsets - low,
                edges.relations[low:high],
                edges.others[low:high],
                edges.forward[low:high],
            )
        )
        first += size
    return found


def joined(parts: Sequence[Ids]) -> NDArray[np.int64]:
    """Return arrays of ids one after the other."""
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
