"""Edits by number, over the graph that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import IN, OUT, EdgeRows, Ranges, flat, no_rows
from rag_accel.engines.knowledge.base import GraphBase
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.interned import Order
from rag_accel.engines.knowledge.protocol import Expansion, Ids, as_ids
from rag_accel.engines.knowledge.vectors import EntityVectors

#: More edges than an entity can have; numbers above it do not fit into an id.
_ALL = 2**40


@dataclass(eq=False)
class Overlay:
    """Edits resolved against a base.

    Args:
        base: the graph they apply to.
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

    @cached_property
    def num_entities(self) -> int:
        """Return the number of entities of base and overlay together."""
        ids = as_ids(list(self.uses))
        was = np.count_nonzero(self.base.uses[ids[ids < len(self.base.uses)]])
        now = np.count_nonzero(as_ids(list(self.uses.values())))
        return self.base.num_entities - int(was) + int(now)

    def has_entity(self, entity: int) -> bool:
        """Tell whether an entity has a triple or a text."""
        num = self.uses.get(entity)
        if num is None:
            num = self.base.uses[entity] if entity < len(self.base.uses) else 0
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
        self, way: int, expansion: Expansion, relations: Ids | None, found: Ranges, first: int
    ) -> tuple[Ranges, EdgeRows]:
        is_touched = _is_in(expansion.entities, self._touched[way])
        if not is_touched.any():
            return found, no_rows()
        distinct, places = np.unique(expansion.entities[is_touched], return_inverse=True)
        rows = self._merged(way, distinct, relations, expansion.fan_out)
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
        kept = ~_is_in(places, removed)
        ends, places = ends[kept], places[kept]
        is_new = _is_in(added.ends, entities)
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
        """Return base and overlay as one; slow, and any thread may do it."""
        entities, relations = self.entities.merged(), self.relations.merged()
        base, num = self.base, len(self.entities)
        adjacency = base.adjacency
        if self.has_edges or len(self.relations.new) or num > adjacency.num_entities:
            adjacency = adjacency.edited(self.added, self.removed, num, relations)
        texts, has_text = base.texts, base.has_text
        if self.texts or num > len(has_text):
            texts, has_text = self._told(num)
        vectors = base.vectors.edited(self.hidden, self.vectors)
        return GraphBase(entities, relations, adjacency, self.loops, texts, has_text, vectors)

    def _told(self, num: int) -> tuple[Mapping[str, str], NDArray[np.bool_]]:
        texts: dict[str, str] = dict(self.base.texts)
        has_text = np.zeros(num, np.bool_)
        has_text[: len(self.base.has_text)] = self.base.has_text
        ids = self.entities.table.ids
        for name, text in self.texts.items():
            if text is not None:
                texts[name] = text
                has_text[ids[name]] = True
            elif name in texts:
                del texts[name]
                has_text[ids[name]] = False
        return texts, has_text


def resolved(base: GraphBase, edits: Edits) -> Overlay:
    """Resolve edits against a base; new names get their ids, so one thread at a time."""
    new, old = _triples(base, edits)
    told = _told_ones(base, edits)
    orders = base.entities.extended(), base.relations.extended()
    is_new_loop, is_old_loop = (rows[:, 0] == rows[:, 2] for rows in (new, old))
    loops = _loops(base, new[is_new_loop], old[is_old_loop])
    new, old = new[~is_new_loop], old[~is_old_loop]
    out, into = (_located(base, way, new, orders, False) for way in (OUT, IN))
    gone, gone_in = (_located(base, way, old, orders, True) for way in (OUT, IN))
    changes = [(out.ends, 1), (into.ends, 1), (gone.ends, -1), (gone_in.ends, -1)]
    uses = _uses(base, [*changes, *told, *_loop_changes(base.loops, loops)])
    hidden, vectors = _vectors(base, edits)
    places = np.sort(gone.places), np.sort(gone_in.places)
    return Overlay(base, *orders, (out, into), places, loops, uses, edits.texts, hidden, vectors)


def _triples(base: GraphBase, edits: Edits) -> tuple[Ids, Ids]:
    """Return the ids of triples that are there and of those that are not: ``[n, 3], int64``."""
    entities, relations = base.entities.table, base.relations.table
    added: list[tuple[int, int, int]] = []
    removed: list[tuple[int, int, int]] = []
    for (head, relation, tail), is_there in edits.triples.items():
        if is_there:
            added.append((entities.id(head), relations.id(relation), entities.id(tail)))
        elif head in entities.ids and relation in relations.ids and tail in entities.ids:
            removed.append((entities.ids[head], relations.ids[relation], entities.ids[tail]))
    return as_ids(added).reshape(-1, 3), as_ids(removed).reshape(-1, 3)


def _told_ones(base: GraphBase, edits: Edits) -> list[tuple[Ids, int]]:
    """Return the entities that have a text now and had none, and those the other way round."""
    table = base.entities.table
    now = [table.id(name) for name, text in edits.texts.items() if text is not None]
    was = [table.ids[name] for name in edits.texts if name in base.texts]
    return [(as_ids(now), 1), (as_ids(was), -1)]


def _uses(base: GraphBase, changes: Sequence[tuple[Ids, int]]) -> Mapping[int, int]:
    """Return how many triples and texts entities have, of those where that may have changed."""
    ends = np.concatenate([ids for ids, _ in changes])
    by = np.repeat([by for _, by in changes], [len(ids) for ids, _ in changes])
    ids, places = np.unique(ends, return_inverse=True)
    num = np.zeros(len(ids), np.int64)
    np.add.at(num, places, by)
    is_old = ids < len(base.uses)
    num[is_old] += base.uses[ids[is_old]]
    return dict(zip(ids.tolist(), num.tolist(), strict=True))


def _is_in(ids: Ids, ascending: Ids) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(ids.shape, np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[places] == ids
    return found


def _located(
    base: GraphBase, way: int, rows: Ids, orders: tuple[Order, Order], is_wanted: bool
) -> EdgeRows:
    ends, relations, others = (rows[:, place] for place in ((0, 1, 2) if way == OUT else (2, 1, 0)))
    edges = EdgeRows(ends, relations, others, np.zeros(len(rows), np.int64))
    found, is_there = base.adjacency.located(way, edges, *orders)
    return found.take(is_there == is_wanted).sorted(*orders)


def _loops(base: GraphBase, added: Ids, removed: Ids) -> Mapping[int, frozenset[int]]:
    if not len(added) and not len(removed):
        return base.loops
    loops = dict(base.loops)
    for entity, relation, _ in added.tolist():
        loops[entity] = loops.get(entity, frozenset()) | {relation}
    for entity, relation, _ in removed.tolist():
        loops[entity] = loops.get(entity, frozenset()) - {relation}
        if not loops[entity]:
            del loops[entity]
    return loops


def _loop_changes(
    before: Mapping[int, frozenset[int]], after: Mapping[int, frozenset[int]]
) -> list[tuple[Ids, int]]:
    """Return the entities that have loops now, once for each, and those that had some."""
    if before is after:
        return []
    return [
        (as_ids([entity for entity, own in loops.items() for _ in own]), by)
        for loops, by in ((after, 1), (before, -1))
    ]


def _vectors(base: GraphBase, edits: Edits) -> tuple[Ids, EntityVectors]:
    """Return ids whose vectors are not those of the base, and the new ones."""
    ids = base.entities.table.ids
    known = {ids[name]: row for name, row in edits.vectors.items() if name in ids}
    fresh = {entity: row for entity, row in sorted(known.items()) if row is not None}
    if not fresh:
        return as_ids(sorted(known)), EntityVectors()
    return as_ids(sorted(known)), EntityVectors(as_ids(list(fresh)), np.stack([*fresh.values()]))
