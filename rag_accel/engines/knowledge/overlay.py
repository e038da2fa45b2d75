"""Edits by number, over the graph that they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import IN, OUT, EdgeRows, Ranges, flat, no_rows
from rag_accel.engines.knowledge.base import GraphBase
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.interned import Order, Triple
from rag_accel.engines.knowledge.protocol import Expansion, Ids, as_ids
from rag_accel.engines.knowledge.vectors import EntityVectors

#: More edges than an entity can have; numbers above it do not fit into an id.
_ALL = 2**40


@dataclass(eq=False)
class Overlay:
    """What edits change of a base.

    Args:
        base: what they were made of.
        entities, relations: the names of both; the new ones behind those of the base.
        added: edges of each direction, in order, with their places in the base.
        removed: places of edges of each direction, ascending.
        loops: relations of an entity to itself, of all entities.
        uses: how many triples and texts an entity has, of those where that has changed.
        texts: those that changed, None where none is left.
        hidden: ids of entities whose vectors in the base are not theirs any more, ascending.
        vectors: those that are new.
    """

    base: GraphBase
    entities: Order
    relations: Order
    added: tuple[EdgeRows, EdgeRows]
    removed: tuple[Ids, Ids]
    loops: Mapping[int, frozenset[int]]
    uses: Mapping[int, int]
    texts: Mapping[str, str | None]
    hidden: Ids
    vectors: EntityVectors

    @property
    def has_edges(self) -> bool:
        """Tell whether the edges of some entity differ from those of the base."""
        return bool(len(self.added[OUT]) or len(self.removed[OUT]))

    @property
    def num_triples(self) -> int:
        """Return the number of triples of base and overlay together."""
        edges = self.base.adjacency.num_forward + len(self.added[OUT]) - len(self.removed[OUT])
        return edges + sum(map(len, self.loops.values()))

    @property
    def num_entities(self) -> int:
        """Return the number of entities of base and overlay together."""
        was = sum(self.base.uses[one] > 0 for one in self.uses if one < len(self.base.uses))
        return self.base.num_entities - int(was) + sum(num > 0 for num in self.uses.values())

    def has_entity(self, one: int) -> bool:
        """Tell whether an entity has a triple or a text."""
        num = self.uses.get(one)
        if num is None:
            num = self.base.uses[one] if one < len(self.base.uses) else 0
        return bool(num > 0)

    @cached_property
    def is_there(self) -> NDArray[np.bool_]:
        """Return which entities have a triple or a text: ``[len(entities)], bool``."""
        found = np.zeros(len(self.entities), np.bool_)
        found[: len(self.base.uses)] = self.base.uses > 0
        found[as_ids(list(self.uses))] = as_ids(list(self.uses.values())) > 0
        return found

    @cached_property
    def _touched(self) -> tuple[Ids, Ids]:
        """Return the entities whose edges have changed, by direction, ascending."""
        starts = self.base.adjacency.starts
        gone = (np.searchsorted(starts[way], self.removed[way], "right") - 1 for way in (OUT, IN))
        out, into = (
            np.unique(np.concatenate((self.added[way].ends, ends)))
            for way, ends in zip((OUT, IN), gone, strict=True)
        )
        return out, into

    def apply(
        self, way: int, asked: Expansion, relations: Ids | None, found: Ranges, first: int
    ) -> tuple[Ranges, EdgeRows]:
        """Return the ranges with those of changed edges, which count from ``first``, and these."""
        is_touched = np.isin(asked.entities, self._touched[way])
        if not is_touched.any():
            return found, no_rows()
        distinct, places = np.unique(asked.entities[is_touched], return_inverse=True)
        rows = self._merged(way, distinct, relations, asked.fan_out)
        starts = np.searchsorted(rows.ends, distinct, "left")
        counts = np.searchsorted(rows.ends, distinct, "right") - starts
        whole = np.zeros((2, len(is_touched), found.starts.shape[1] + 1), np.int64)
        whole[0, :, :-1], whole[1, :, :-1] = found.starts, found.counts
        whole[1, is_touched, :-1] = 0
        whole[0, is_touched, -1] = first + starts[places]
        whole[1, is_touched, -1] = counts[places]
        return Ranges(whole[0], whole[1]), rows

    def _merged(self, way: int, entities: Ids, relations: Ids | None, fan_out: int) -> EdgeRows:
        """Return the first edges of entities, in order; ids of entities ascend."""
        adjacency, removed, added = self.base.adjacency, self.removed[way], self.added[way]
        most = min(fan_out, _ALL)
        ranges = adjacency.bounded(way, entities, relations, most + len(removed))
        places = flat(ranges.starts.ravel(), ranges.counts.ravel())
        ends = np.repeat(entities, ranges.counts.sum(axis=1))
        kept = ~np.isin(places, removed)
        ends, places = ends[kept], places[kept]
        is_new = np.isin(added.ends, entities)
        if relations is not None:
            is_new &= np.isin(added.relations, relations)
        new = added.take(is_new)
        # Each is put in before the edge at its place, so new ones stand first: two sorted runs.
        order = np.argsort(np.concatenate((new.places, places)), kind="stable")
        rows = EdgeRows(
            np.concatenate((new.ends, ends)),
            np.concatenate((new.relations, adjacency.relations[places])),
            np.concatenate((new.others, adjacency.others[places])),
            np.concatenate((new.places, places)),
        ).take(order)
        return rows.take(np.arange(len(rows)) - np.searchsorted(rows.ends, rows.ends) < most)

    def merged(self) -> GraphBase:
        """Return base and overlay as one; this takes a time, and any thread may do it."""
        entities, relations = self.entities.merged(), self.relations.merged()
        base, num = self.base, len(self.entities)
        adjacency = base.adjacency
        if self.has_edges or len(self.relations.new) or num > adjacency.num_entities:
            adjacency = adjacency.edited(self.added, self.removed, num, relations)
        texts, is_told = base.texts, base.is_told
        if self.texts or num > len(is_told):
            texts, is_told = self._told(num)
        vectors = base.vectors.edited(self.hidden, self.vectors)
        return GraphBase(entities, relations, adjacency, self.loops, texts, is_told, vectors)

    def _told(self, num: int) -> tuple[Mapping[str, str], NDArray[np.bool_]]:
        texts: dict[str, str] = dict(self.base.texts)
        is_told = np.zeros(num, np.bool_)
        is_told[: len(self.base.is_told)] = self.base.is_told
        ids = self.entities.table.ids
        for name, text in self.texts.items():
            if text is not None:
                texts[name] = text
                is_told[ids[name]] = True
            elif name in texts:
                del texts[name]
                is_told[ids[name]] = False
        return texts, is_told


def resolved(base: GraphBase, edits: Edits) -> Overlay:
    """Return what edits change of a base; new names get their ids, so one thread at a time."""
    entities, relations = base.entities.table, base.relations.table
    added: list[tuple[int, int, int]] = []
    removed: list[tuple[int, int, int]] = []
    for (head, relation, tail), is_there in edits.triples.items():
        if is_there:
            added.append((entities.id(head), relations.id(relation), entities.id(tail)))
        elif head in entities.ids and relation in relations.ids and tail in entities.ids:
            removed.append((entities.ids[head], relations.ids[relation], entities.ids[tail]))
    uses = _Uses(base)
    for name, text in edits.texts.items():
        if text is not None:
            uses.change(entities.id(name), 1 - (name in base.texts))
        elif name in base.texts:
            uses.change(entities.ids[name], -1)
    orders = base.entities.extended(), base.relations.extended()
    loops = _loops(base, _loops_of(added), _loops_of(removed), uses)
    new, old = as_ids(added).reshape(-1, 3), as_ids(removed).reshape(-1, 3)
    out = _located(base, OUT, new[new[:, 0] != new[:, 2]], orders, False)
    into = _located(base, IN, new[new[:, 0] != new[:, 2]], orders, False)
    gone = _located(base, OUT, old[old[:, 0] != old[:, 2]], orders, True)
    gone_in = _located(base, IN, old[old[:, 0] != old[:, 2]], orders, True)
    for rows, change in ((out, 1), (into, 1), (gone, -1), (gone_in, -1)):
        distinct, counts = np.unique(rows.ends, return_counts=True)
        for one, num in zip(distinct.tolist(), counts.tolist(), strict=True):
            uses.change(one, change * num)
    hidden, vectors = _vectors(base, edits)
    places = np.sort(gone.places), np.sort(gone_in.places)
    return Overlay(
        base, *orders, (out, into), places, loops, uses.now, edits.texts, hidden, vectors
    )


class _Uses:
    """How many triples and texts entities have, of those where that changes."""

    def __init__(self, base: GraphBase) -> None:
        self._base = base
        self.now: dict[int, int] = {}

    def change(self, one: int, by: int) -> None:
        was = self.now.get(one)
        if was is None:
            was = int(self._base.uses[one]) if one < len(self._base.uses) else 0
        self.now[one] = was + by


def _located(
    base: GraphBase, way: int, rows: Ids, orders: tuple[Order, Order], is_wanted: bool
) -> EdgeRows:
    """Return the edges that are in the base, or those that are not, in order."""
    ends, relations, others = (rows[:, place] for place in ((0, 1, 2) if way == OUT else (2, 1, 0)))
    edges = EdgeRows(ends, relations, others, np.zeros(len(rows), np.int64))
    found, is_there = base.adjacency.located(way, edges, *orders)
    return found.take(is_there == is_wanted).sorted(*orders)


def _loops_of(rows: Iterable[Triple | tuple[int, int, int]]) -> list[tuple[int, int]]:
    return [(int(head), int(relation)) for head, relation, tail in rows if head == tail]


def _loops(
    base: GraphBase,
    added: Iterable[tuple[int, int]],
    removed: Iterable[tuple[int, int]],
    uses: _Uses,
) -> Mapping[int, frozenset[int]]:
    changes = [*((*one, True) for one in added), *((*one, False) for one in removed)]
    if not changes:
        return base.loops
    loops = dict(base.loops)
    for one, relation, is_there in changes:
        before = loops.get(one, frozenset())
        after = before | {relation} if is_there else before - {relation}
        uses.change(one, len(after) - len(before))
        loops[one] = after
        if not after:
            del loops[one]
    return loops


def _vectors(base: GraphBase, edits: Edits) -> tuple[Ids, EntityVectors]:
    """Return ids whose vectors are not those of the base, and the new ones."""
    ids = base.entities.table.ids
    known = {ids[name]: row for name, row in edits.vectors.items() if name in ids}
    fresh = {one: row for one, row in sorted(known.items()) if row is not None}
    if not fresh:
        return as_ids(sorted(known)), EntityVectors()
    return as_ids(sorted(known)), EntityVectors(as_ids(list(fresh)), np.stack([*fresh.values()]))
