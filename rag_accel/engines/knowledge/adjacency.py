"""Triples as compressed adjacency: the edges of any number of entities by array operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.interned import Order
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, no_edges

_NONE = np.empty(0, np.int64)
OUT, IN = 0, 1


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

    def sorted(self, entities: Order, relations: Order) -> EdgeRows:
        """Return them by entity, then by the names of the relation and of the other end."""
        keys = (entities.rank(self.others), relations.rank(self.relations), self.ends)
        return self.take(np.lexsort(keys))


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of the edges of each entity, by relation: ``[n, m], int64`` each."""

    starts: Ids
    counts: Ids


class Patch(Protocol):
    """Changes of edges since an adjacency was built."""

    def apply(
        self, way: int, expansion: Expansion, relations: Ids | None, found: Ranges, first: int
    ) -> tuple[Ranges, EdgeRows]:
        """Return the ranges with those of changed edges, which count from ``first``, and these."""
        ...


class Adjacency:
    """The edges of every entity in both directions, in the order that ``Edges`` states.

    Edges that leave come before edges that come in; within a direction they are sorted by the id
    of their entity, then by name. No entity has an edge to itself.

    Args:
        ways: the edges of each direction, in order.
        num_entities: ids are below it.
        relations: the order of the relations, nothing new in it.
    """

    def __init__(
        self, ways: tuple[EdgeRows, EdgeRows], num_entities: int, relations: Order
    ) -> None:
        outgoing, incoming = ways
        self.num_entities = num_entities
        self._num_relations = max(1, len(relations))
        self.num_forward = len(outgoing)
        self.others = np.concatenate((outgoing.others, incoming.others))
        self.relations = np.concatenate((outgoing.relations, incoming.relations))
        self._ranks = relations.ranks
        self._keys = tuple(
            way.ends * self._num_relations + self._ranks[way.relations] for way in ways
        )
        #: where the edges of each entity begin, among all of both directions
        self.starts = tuple(
            np.concatenate(([0], np.cumsum(np.bincount(rows.ends, minlength=num_entities)))) + first
            for rows, first in zip(ways, (0, self.num_forward), strict=True)
        )

    def __len__(self) -> int:
        """Return the number of edges of both directions together."""
        return len(self.others)

    @property
    def degrees(self) -> Ids:
        """Return how many edges each entity has: ``[num_entities], int64``."""
        return np.diff(self.starts[OUT]) + np.diff(self.starts[IN])

    def expand(
        self, expansion: Expansion, relations: Ids | None, patch: Patch | None = None
    ) -> Edges:
        """Return the edges of one expansion.

        Args:
            expansion: the entities; their ids may be larger than those known here.
            relations: ids of the relations it follows, in the order of their names.
            patch: changes since it was built.
        """
        if not len(expansion.entities):
            return no_edges(0)
        ways: list[Ranges] = []
        others: list[tuple[EdgeRows, bool]] = []
        first = len(self)
        for way, name in enumerate(("out", "in")):
            if expansion.direction in (name, "both"):
                found = self.bounded(way, expansion.entities, relations, expansion.fan_out)
                if patch is not None:
                    found, rows = patch.apply(way, expansion, relations, found, first)
                    others.append((rows, way == OUT))
                    first += len(rows)
                ways.append(found)
        starts = np.concatenate([way.starts for way in ways], axis=1)
        counts = np.concatenate([way.counts for way in ways], axis=1)
        places = flat(starts.ravel(), counts.ravel())
        offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1)))).astype(np.int64)
        return self._gathered(offsets, places, others)

    def _gathered(
        self, offsets: Ids, places: Ids, others: Sequence[tuple[EdgeRows, bool]]
    ) -> Edges:
        is_other = places >= len(self)
        if not is_other.any():
            return Edges(
                offsets, self.relations[places], self.others[places], places < self.num_forward
            )
        own, told = places[~is_other], places[is_other] - len(self)
        found = np.empty((2, len(places)), np.int64)
        forward = np.empty(len(places), np.bool_)
        found[:, ~is_other] = self.relations[own], self.others[own]
        forward[~is_other] = own < self.num_forward
        found[0, is_other] = np.concatenate([rows.relations for rows, _ in others])[told]
        found[1, is_other] = np.concatenate([rows.others for rows, _ in others])[told]
        is_out = [np.full(len(rows), way) for rows, way in others]
        forward[is_other] = np.concatenate(is_out)[told]
        return Edges(offsets, found[0], found[1], forward)

    def bounded(self, way: int, entities: Ids, relations: Ids | None, fan_out: int) -> Ranges:
        """Return where the first edges of each entity stand; none of entities not known here."""
        is_known = entities < self.num_entities
        if not self.num_entities:
            return Ranges(*np.zeros((2, len(entities), 1), np.int64))
        if not is_known.all():
            entities = np.where(is_known, entities, 0)
        starts, stops = self._ranges(way, entities, relations)
        counts = stops - starts
        before = np.cumsum(counts, axis=1) - counts
        counts = np.clip(fan_out - before, 0, counts)
        counts[~is_known] = 0
        return Ranges(starts, counts)

    def _ranges(self, way: int, entities: Ids, relations: Ids | None) -> tuple[Ids, Ids]:
        if relations is None:
            starts = self.starts[way]
            return starts[entities][:, None], starts[entities + 1][:, None]
        known = relations[relations < len(self._ranks)]
        wanted = entities[:, None] * self._num_relations + self._ranks[known][None, :]
        offset = self.num_forward if way else 0
        keys = self._keys[way]
        return (
            np.searchsorted(keys, wanted, "left") + offset,
            np.searchsorted(keys, wanted, "right") + offset,
        )

    def located(
        self, way: int, rows: EdgeRows, entities: Order, relations: Order
    ) -> tuple[EdgeRows, NDArray[np.bool_]]:
        """Return edges with their places, and which of them are there.

        Args:
            way: their direction.
            rows: the edges; names of theirs may be newer than this adjacency.
            entities, relations: the orders of all names, those known here and newer ones.
        """
        offset, keys = (self.num_forward if way else 0), self._keys[way]
        first = rows.ends * self._num_relations + relations.before(rows.relations)
        is_known = (rows.ends < self.num_entities) & (rows.relations < len(relations.ids))
        first[rows.ends >= self.num_entities] = np.iinfo(np.int64).max
        low = np.searchsorted(keys, first, "left") + offset
        stop = np.where(is_known, np.searchsorted(keys, first, "right") + offset, low)
        high, wanted = stop.copy(), entities.rank(rows.others)
        while (is_open := low < high).any():
            middle = (low + high) // 2
            looked = entities.rank(self.others[np.where(is_open, middle, 0)])
            is_less = is_open & (looked < wanted)
            low, high = np.where(is_less, middle + 1, low), np.where(is_less, high, middle)
        is_there = low < stop
        is_there[is_there] = self.others[low[is_there]] == rows.others[is_there]
        return EdgeRows(rows.ends, rows.relations, rows.others, low), is_there

    def edited(
        self,
        added: Sequence[EdgeRows],
        removed: Sequence[Ids],
        num_entities: int,
        relations: Order,
    ) -> Adjacency:
        """Return the adjacency with edges put in at their places, and without others.

        Args:
            added: those of each direction, in order, with their places here.
            removed: the places of those of each direction, ascending.
            num_entities: ids are below it.
            relations: the order of all relations, nothing new in it.
        """
        ways = [self._edited(way, added[way], removed[way]) for way in (OUT, IN)]
        return Adjacency((ways[0], ways[1]), num_entities, relations)

    def _edited(self, way: int, added: EdgeRows, removed: Ids) -> EdgeRows:
        offset = self.num_forward if way else 0
        whole = slice(offset, len(self) if way else self.num_forward)
        ends = np.repeat(np.arange(self.num_entities), np.diff(self.starts[way]))
        kept = np.ones(len(ends), np.bool_)
        kept[removed - offset] = False
        places = added.places - offset - np.searchsorted(removed, added.places)
        ends, relations, others = (
            np.insert(old[kept], places, new)
            for old, new in (
                (ends, added.ends),
                (self.relations[whole], added.relations),
                (self.others[whole], added.others),
            )
        )
        return EdgeRows(ends, relations, others, _NONE)

    def renamed(self, entities: Ids, relations: Ids, num_entities: int, order: Order) -> Adjacency:
        """Return the same edges by other ids, which ascend as those do."""
        ways = [self._edited(way, no_rows(), _NONE) for way in (OUT, IN)]
        named = [
            EdgeRows(entities[way.ends], relations[way.relations], entities[way.others], _NONE)
            for way in ways
        ]
        return Adjacency((named[0], named[1]), num_entities, order)


def no_rows() -> EdgeRows:
    return EdgeRows(_NONE, _NONE, _NONE, _NONE)


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
