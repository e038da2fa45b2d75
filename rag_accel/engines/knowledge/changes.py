"""A graph as it was when it was last rebuilt, and edits of it since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import IN, LOOP, OUT, Adjacency, EdgeRows, flat
from rag_accel.engines.knowledge.names import Names, SortedNames, Triple
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids, no_edges
from rag_accel.engines.knowledge.vectors import EntityVectors
from rag_accel.engines.knowledge.words import NameWords

Vector = NDArray[np.float32]
Key = TypeVar("Key")
Value = TypeVar("Value")

#: More edges than an entity can have; numbers above it do not fit into an id.
_ALL = 2**40
_NONE = np.empty(0, np.int64)
_NO_ROWS = EdgeRows(_NONE, _NONE, _NONE, _NONE)


@dataclass(slots=True)
class Edits:
    """The latest state of each triple, text and vector that was edited; it may be no change.

    Edits are idempotent: over a graph that has some of them already they mean the same. So a
    rebuild needs no lock, and one that fails has lost nothing.

    Args:
        triples: whether each is there.
        texts: of entities, None where none is left.
        vectors: of entities, of length 1, None where none is left.
    """

    triples: dict[Triple, bool] = field(default_factory=dict[Triple, bool])
    texts: dict[str, str | None] = field(default_factory=dict[str, str | None])
    vectors: dict[str, Vector | None] = field(default_factory=dict[str, Vector | None])

    def __len__(self) -> int:
        return len(self.triples) + len(self.texts) + len(self.vectors)

    def copy(self) -> Edits:
        """Return a copy that later edits do not change."""
        return Edits(dict(self.triples), dict(self.texts), dict(self.vectors))

    def since(self, earlier: Edits) -> Edits:
        return Edits(
            _since(self.triples, earlier.triples),
            _since(self.texts, earlier.texts),
            _since(self.vectors, earlier.vectors),
        )


def _since(now: dict[Key, Value], earlier: Mapping[Key, Value]) -> dict[Key, Value]:
    missing = object()
    return {key: value for key, value in now.items() if earlier.get(key, missing) is not value}


@dataclass(eq=False)
class GraphBase:
    """Triples by number, texts and vectors; never written again, but for what is first needed.

    Args:
        entities: the names of entities; each has a triple or a text.
        relations: the names of relations.
        adjacency: all edges, by the places of these names.
        texts: by name; an entity may have a text and no triple.
        vectors: of entities that have one, by their places.
    """

    entities: SortedNames = field(default_factory=SortedNames)
    relations: SortedNames = field(default_factory=SortedNames)
    adjacency: Adjacency = field(default_factory=lambda: Adjacency([_NO_ROWS] * 3, 0, 0))
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    vectors: EntityVectors = field(default_factory=EntityVectors)
    #: made by the first search by words
    words: NameWords | None = None
    #: how many triples and texts each entity has
    uses: Ids = field(init=False)

    def __post_init__(self) -> None:
        self.uses = self.adjacency.degrees
        places = self.entities.places
        self.uses[as_ids([places[name] for name in self.texts])] += 1

    @property
    def size(self) -> int:
        """Return the number of triples, texts and vectors."""
        return self.adjacency.num_triples + len(self.texts) + len(self.vectors)

    def edges(self, name: str) -> Iterator[Triple]:
        """Yield the triples of an entity."""
        entity = self.entities.places.get(name)
        if entity is None:
            return
        entities, relations = self.entities.names, self.relations.names
        for way, starts in enumerate(self.adjacency.starts):
            for place in range(int(starts[entity]), int(starts[entity + 1])):
                relation = relations[int(self.adjacency.relations[place])]
                other = entities[int(self.adjacency.others[place])]
                yield (other, relation, name) if way == IN else (name, relation, other)

    def triples(self) -> Iterator[Triple]:
        """Yield all triples, in an order that depends on them alone."""
        entities, relations = self.entities.names, self.relations.names
        out, _, loops = self.adjacency.starts
        for entity, name in enumerate(entities):
            for starts in (loops, out):
                edges = slice(int(starts[entity]), int(starts[entity + 1]))
                others = self.adjacency.others[edges].tolist()
                for relation, other in zip(
                    self.adjacency.relations[edges].tolist(), others, strict=True
                ):
                    yield name, relations[relation], entities[other]

    def vector(self, name: str) -> Vector | None:
        """Return the vector of an entity: ``[dim], float32``."""
        entity = self.entities.places.get(name, -1)
        place = int(np.searchsorted(self.vectors.ids, entity))
        is_there = place < len(self.vectors) and self.vectors.ids[place] == entity
        return self.vectors.rows[place] if is_there else None


def base_of(edits: Edits) -> GraphBase:
    """Return what edits of an empty graph make of it."""
    triples = [triple for triple, is_there in edits.triples.items() if is_there]
    texts = {name: text for name, text in edits.texts.items() if text is not None}
    entities = SortedNames(sorted({*ends_of(triples), *texts}))
    relations = SortedNames(sorted({relation for _, relation, _ in triples}))
    heads = as_ids([entities.places[head] for head, _, _ in triples])
    along = as_ids([relations.places[relation] for _, relation, _ in triples])
    tails = as_ids([entities.places[tail] for _, _, tail in triples])
    is_loop = heads == tails
    ways: list[EdgeRows] = []
    directions = (heads, tails, ~is_loop), (tails, heads, ~is_loop), (heads, tails, is_loop)
    for ends, others, kept in directions:
        order = np.lexsort((others[kept], along[kept], ends[kept]))
        columns = (ends[kept][order], along[kept][order], others[kept][order])
        ways.append(EdgeRows(*columns, _NONE))
    rows = {
        entities.places[name]: row
        for name, row in edits.vectors.items()
        if row is not None and name in entities.places
    }
    ids = sorted(rows)
    vectors = EntityVectors(as_ids(ids), np.stack([rows[id] for id in ids])) if ids else None
    adjacency = Adjacency(ways, len(entities), len(relations))
    return GraphBase(entities, relations, adjacency, texts, vectors or EntityVectors())


class ChangedGraph:
    """A base and edits of it by number; making it takes time by the number of edits.

    Args:
        base: the graph they apply to.
        edits: not changed any more.
    """

    def __init__(self, base: GraphBase, edits: Edits) -> None:
        self.base = base
        self.texts = edits.texts
        there = [triple for triple, is_there in edits.triples.items() if is_there]
        told = [name for name, text in edits.texts.items() if text is not None]
        self.entities = Names(base.entities, (*ends_of(there), *told))
        self.relations = Names(base.relations, (relation for _, relation, _ in there))
        gone = [triple for triple, is_there in edits.triples.items() if not is_there]
        new, old = self._rows(there), self._rows(gone)
        #: edges of each direction, in order
        self.added = [self._located(way, new, False) for way in (OUT, IN, LOOP)]
        self.removed = [self._located(way, old, True) for way in (OUT, IN, LOOP)]
        #: entities whose edges have changed, by direction, ascending
        self._touched = [
            np.unique(np.concatenate((added.ends, removed.ends)))
            for added, removed in zip(self.added, self.removed, strict=True)
        ]
        #: how many triples and texts an entity has, if that may have changed
        self.uses = self._uses(told)
        #: vectors that are new or went, by the ids of their entities
        self.hidden, self.fresh = self._vectors(edits.vectors)

    @property
    def num_triples(self) -> int:
        """Return the number of triples of the base and the edits together."""
        changes = ((self.added, 1), (self.removed, -1))
        return self.base.adjacency.num_triples + sum(
            by * len(ways[way]) for ways, by in changes for way in (OUT, LOOP)
        )

    @property
    def num_entities(self) -> int:
        """Return the number of entities of the base and the edits together."""
        return len(self.entities) - sum(num <= 0 for num in self.uses.values())

    def has_entity(self, entity: int) -> bool:
        """Tell whether an entity has a triple or a text."""
        num = self.uses.get(entity)
        return entity >= 0 if num is None else num > 0

    @cached_property
    def is_there(self) -> NDArray[np.bool_]:
        """Return which entities have a triple or a text: ``[len(entities)], bool``."""
        found = np.ones(len(self.entities), np.bool_)
        found[self.entities.places(as_ids(list(self.uses)))] = as_ids(list(self.uses.values())) > 0
        return found

    @cached_property
    def held(self) -> EntityVectors:
        """Return the vectors of the base, by the ids of their entities."""
        vectors = self.base.vectors
        return EntityVectors(self.entities.base_ids(vectors.ids), vectors.rows)

    def expand(self, expansion: Expansion, relations: Ids | None) -> Edges:
        """Return the edges of one expansion along these relations, ascending; None follows all."""
        entities, most = expansion.entities, min(expansion.fan_out, _ALL)
        if not len(entities):
            return no_edges(0)
        parts: list[tuple[Ids, Ids]] = []
        changed: list[EdgeRows] = []
        num, num_out = len(self.base.adjacency), self.base.adjacency.firsts[IN]
        first = num
        for way, name in ((OUT, "out"), (IN, "in")):
            if expansion.direction not in (name, "both"):
                continue
            starts, counts = self._ranges(way, entities, relations, most)
            is_touched = _are_in(entities, self._touched[way])
            if is_touched.any():
                rows = self._edges(way, np.unique(entities[is_touched]), relations, most)
                low, high = (np.searchsorted(rows.ends, entities, at) for at in ("left", "right"))
                counts[is_touched] = 0
                parts.append((first + low[:, None], (high - low)[:, None]))
                first += len(rows)
                changed.append(rows)
            parts.append((starts, counts))
        starts, counts = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        places = flat(starts.ravel(), counts.ravel())
        offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1)))).astype(np.int64)
        is_own = places < num
        own, others = self._of_base(places[is_own]), places[~is_own] - num
        parts_of = [(own.relations, own.others, own.places < num_out)]
        if not changed:
            return Edges(offsets, *parts_of[0])
        parts_of += [(rows.relations, rows.others, rows.places < num_out) for rows in changed]
        order = np.empty(len(places), np.int64)
        order[is_own], order[~is_own] = np.arange(len(own.others)), len(own.others) + others
        return Edges(
            offsets, *(np.concatenate(part)[order] for part in zip(*parts_of, strict=True))
        )

    def rebuilt(self) -> GraphBase:
        """Return base and edits as one, without unused names; slow, and any thread may do it."""
        base, adjacency = self.base, self.base.adjacency
        left = np.ones(len(adjacency), np.bool_)
        left[np.concatenate([rows.places for rows in self.removed])] = False
        num_used = np.bincount(adjacency.relations[left], minlength=len(base.relations))
        named = [self.relations.base_ids(np.flatnonzero(num_used))]
        named = np.unique(np.concatenate((*named, *(rows.relations for rows in self.added))))
        kept = np.sort(self.entities.ids(np.flatnonzero(self.is_there)))
        entities = np.searchsorted(kept, self.entities.base_ids(np.arange(len(base.entities))))
        relations = np.searchsorted(named, self.relations.base_ids(np.arange(len(base.relations))))
        ways: list[EdgeRows] = []
        for way, (added, removed) in enumerate(zip(self.added, self.removed, strict=True)):
            ends, others = np.searchsorted(kept, added.ends), np.searchsorted(kept, added.others)
            rows = EdgeRows(ends, np.searchsorted(named, added.relations), others, added.places)
            ways.append(adjacency.edited(way, rows, removed.places, entities, relations))
        texts = {**base.texts, **self.texts}
        vectors = self.held.edited(self.hidden, self.fresh)
        found = GraphBase(
            SortedNames(self.entities.of(kept)),
            SortedNames(self.relations.of(named)),
            Adjacency(ways, len(kept), len(named)),
            {name: text for name, text in texts.items() if text is not None},
            EntityVectors(np.searchsorted(kept, vectors.ids), vectors.rows),
        )
        if base.words is not None:
            found.words = self.edited_words(base.words).renamed(self.entities.places(kept))
        return found

    def edited_words(self, words: NameWords) -> NameWords:
        """Return the words of the base's names, with the edits."""
        places = self.entities.places(as_ids(list(self.uses)))
        changed = places[places < len(self.base.entities)]
        return words.edited(self.entities.new, changed, self.is_there)

    def _ranges(self, way: int, entities: Ids, relations: Ids | None, most: int) -> tuple[Ids, Ids]:
        """Return where edges of entities stand in the base, as ``Adjacency.ranges`` does."""
        if not len(self.base.entities):
            return np.zeros((len(entities), 1), np.int64), np.zeros((len(entities), 1), np.int64)
        is_new = self.entities.are_new(entities)
        known = np.where(is_new, 0, self.entities.before(entities))
        if relations is not None:
            relations = self.relations.before(relations[~self.relations.are_new(relations)])
        starts, counts = self.base.adjacency.ranges(way, known, relations, most)
        counts[is_new] = 0
        return starts, counts

    def _edges(self, way: int, entities: Ids, relations: Ids | None, most: int) -> EdgeRows:
        """Return the first edges of entities, ascending, base and edits together; in order."""
        added, removed = self.added[way], self.removed[way].places
        starts, counts = self._ranges(way, entities, relations, most + len(removed))
        places = flat(starts.ravel(), counts.ravel())
        is_left = ~_are_in(places, removed)
        own = self._of_base(places[is_left])
        ends = np.repeat(entities, counts.sum(axis=1))[is_left]
        is_new = _are_in(added.ends, entities)
        if relations is not None:
            is_new &= _are_in(added.relations, relations)
        new = added.take(is_new)
        # Each is put in before the edge at its place, so new ones stand first: two sorted runs.
        order = np.argsort(np.concatenate((new.places, own.places)), kind="stable")
        rows = EdgeRows(
            np.concatenate((new.ends, ends)),
            np.concatenate((new.relations, own.relations)),
            np.concatenate((new.others, own.others)),
            np.full(len(order), self.base.adjacency.firsts[way] - (way == OUT)),
        )
        rows = EdgeRows(rows.ends[order], rows.relations[order], rows.others[order], rows.places)
        return rows.take(np.arange(len(rows)) - np.searchsorted(rows.ends, rows.ends) < most)

    def _of_base(self, places: Ids) -> EdgeRows:
        """Return edges of the base by ids, without their ends."""
        adjacency = self.base.adjacency
        relations = self.relations.base_ids(adjacency.relations[places])
        return EdgeRows(_NONE, relations, self.entities.base_ids(adjacency.others[places]), places)

    def _rows(self, triples: list[Triple]) -> Ids:
        """Return the ids of triples whose names have some: ``[n, 3], int64``."""
        entities = {end: self.entities.id(end) for end in ends_of(triples)}
        relations = {name: self.relations.id(name) for name in {triple[1] for triple in triples}}
        rows = as_ids([(entities[h], relations[r], entities[t]) for h, r, t in triples])
        rows = rows.reshape(-1, 3)
        return rows[(rows >= 0).all(axis=1)]

    def _located(self, way: int, rows: Ids, is_wanted: bool) -> EdgeRows:
        """Return the edges of a direction that are in the base, or that are not, in order."""
        rows = rows[(rows[:, 0] == rows[:, 2]) == (way == LOOP)]
        ends, relations, others = rows.T[::-1] if way == IN else rows.T
        edges = EdgeRows(ends, relations, others, _NONE)
        order = np.lexsort((others, relations, ends))
        found, is_there = self.base.adjacency.located(way, edges, self.entities, self.relations)
        return found.take(order[is_there[order] == is_wanted])

    def _uses(self, told: list[str]) -> Mapping[int, int]:
        ids, texts = self.entities.id, self.base.texts
        changes = [(rows.ends, 1) for rows in self.added]
        changes += [(rows.ends, -1) for rows in self.removed]
        changes.append((as_ids([ids(name) for name in told]), 1))
        changes.append((as_ids([ids(name) for name in self.texts if name in texts]), -1))
        by = np.repeat([by for _, by in changes], [len(ends) for ends, _ in changes])
        found, places = np.unique(
            np.concatenate([ends for ends, _ in changes]), return_inverse=True
        )
        num = np.zeros(len(found), np.int64)
        np.add.at(num, places, by)
        is_old = ~self.entities.are_new(found)
        num[is_old] += self.base.uses[self.entities.before(found[is_old])]
        return dict(zip(found.tolist(), num.tolist(), strict=True))

    def _vectors(self, edited: Mapping[str, Vector | None]) -> tuple[Ids, EntityVectors]:
        """Return the ids of entities whose vectors are not those of the base, and the new ones."""
        known = sorted((self.entities.id(name), name) for name in edited)
        rows = [(entity, edited[name]) for entity, name in known if entity >= 0]
        fresh = [(entity, row) for entity, row in rows if row is not None]
        hidden = as_ids([entity for entity, _ in rows])
        if not fresh:
            return hidden, EntityVectors()
        ids = as_ids([entity for entity, _ in fresh])
        return hidden, EntityVectors(ids, np.stack([row for _, row in fresh]))


def ends_of(triples: Iterable[Triple]) -> set[str]:
    """Return the entities of triples."""
    return {end for head, _, tail in triples for end in (head, tail)}


def _are_in(ids: Ids, ascending: Ids) -> NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(ids.shape, np.bool_)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[places] == ids
    return found
