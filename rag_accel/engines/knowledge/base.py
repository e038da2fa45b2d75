"""A graph as it was at its last merge: sorted, and never written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.adjacency import IN, OUT, Adjacency, no_rows
from rag_accel.engines.knowledge.interned import InternedNames, Order, Triple
from rag_accel.engines.knowledge.vectors import EntityVectors
from rag_accel.engines.knowledge.words import NameWords

#: Unused names are dropped once there are more of them than this and than names in use.
_MOST_UNUSED = 1024


@dataclass(eq=False)
class GraphBase:
    """Triples by number, texts and vectors.

    Args:
        entities: the order of the names of entities, of those that are gone too.
        relations: the order of the names of relations.
        adjacency: all edges but those of an entity to itself.
        loops: relations of an entity to itself, by its id.
        texts: by name; an entity may have a text and no triple.
        has_text: ``[n], bool``, whether each entity has a text.
        vectors: of entities that have one.
    """

    entities: Order
    relations: Order
    adjacency: Adjacency
    loops: Mapping[int, frozenset[int]]
    texts: Mapping[str, str]
    has_text: NDArray[np.bool_]
    vectors: EntityVectors
    #: built by the first search by words; written under the lock of the names
    words: NameWords | None = None
    uses: NDArray[np.int64] = field(init=False)
    num_entities: int = field(init=False)
    num_triples: int = field(init=False)

    def __post_init__(self) -> None:
        self.uses = self.adjacency.degrees
        for entity, relations in self.loops.items():
            self.uses[entity] += len(relations)
        self.uses += self.has_text
        self.num_entities = int(np.count_nonzero(self.uses))
        self.num_triples = self.adjacency.num_forward + sum(map(len, self.loops.values()))

    @property
    def size(self) -> int:
        """Return the number of triples, texts and vectors."""
        return self.num_triples + len(self.texts) + len(self.vectors)

    def edges(self, name: str) -> Iterator[Triple]:
        """Yield the triples of an entity."""
        entity = self.entities.table.ids.get(name, len(self.uses))
        if entity >= len(self.uses):
            return
        entities, relations = self.entities.table.names, self.relations.table.names
        for relation in self.loops.get(entity, ()):
            yield name, relations[relation], name
        for way in (OUT, IN):
            starts = self.adjacency.starts[way]
            for place in range(int(starts[entity]), int(starts[entity + 1])):
                relation = relations[int(self.adjacency.relations[place])]
                other = entities[int(self.adjacency.others[place])]
                yield (name, relation, other) if way == OUT else (other, relation, name)

    def degree(self, name: str) -> int:
        """Return how many triples an entity has."""
        entity = self.entities.table.ids.get(name, len(self.uses))
        return int(self.uses[entity]) - (name in self.texts) if entity < len(self.uses) else 0

    def triples(self) -> Iterator[Triple]:
        """Yield all triples, in an order that depends on them alone."""
        entities, relations = self.entities.table.names, self.relations.table.names
        ends = self.adjacency.starts[OUT]
        for entity in self.entities.ids.tolist():
            edges = slice(int(ends[entity]), int(ends[entity + 1]))
            others = self.adjacency.others[edges].tolist()
            found = zip(self.adjacency.relations[edges].tolist(), others, strict=True)
            loops = ((relation, entity) for relation in self.loops.get(entity, ()))
            for relation, other in (*sorted(loops, key=lambda own: relations[own[0]]), *found):
                yield entities[entity], relations[relation], entities[other]

    def vector(self, name: str) -> NDArray[np.float32] | None:
        """Return the vector of an entity: ``[dim], float32``."""
        entity = self.entities.table.ids.get(name, -1)
        place = int(np.searchsorted(self.vectors.ids, entity))
        is_there = place < len(self.vectors) and self.vectors.ids[place] == entity
        return self.vectors.rows[place] if is_there else None

    def compacted(self) -> GraphBase:
        """Return the same graph without unused names; itself if they are few."""
        is_used = self.uses > 0
        is_named = np.zeros(len(self.relations), np.bool_)
        is_named[self.adjacency.relations] = True
        is_named[[relation for relations in self.loops.values() for relation in relations]] = True
        if not (_are_many(is_used) or _are_many(is_named)):
            return self
        entities, relations = _kept(self.entities, is_used), _kept(self.relations, is_named)
        told, named = np.cumsum(is_used) - 1, np.cumsum(is_named) - 1
        loops = {
            int(told[entity]): frozenset(int(named[relation]) for relation in own)
            for entity, own in self.loops.items()
        }
        adjacency = self.adjacency.renamed(told, named, len(entities), relations)
        vectors, has_text = self.vectors.renamed(told), self.has_text[is_used]
        found = GraphBase(entities, relations, adjacency, loops, self.texts, has_text, vectors)
        if self.words is not None:
            found.words = NameWords.of(entities.table.names, found.uses > 0)
        return found


def _are_many(is_used: NDArray[np.bool_]) -> bool:
    num = int(np.count_nonzero(is_used))
    return len(is_used) - num > max(_MOST_UNUSED, num)


def _kept(order: Order, is_used: NDArray[np.bool_]) -> Order:
    names: Sequence[str] = order.table.of(np.flatnonzero(is_used))
    ids = order.ids[is_used[order.ids]]
    sorted_ids = (np.cumsum(is_used) - 1)[ids]
    ranks = np.empty(len(ids), np.int64)
    ranks[sorted_ids] = np.arange(len(ids))
    none = np.empty(0, np.int64)
    return Order(InternedNames(names), sorted_ids, ranks, none, none)


def empty_base() -> GraphBase:
    entities, relations = Order.of(InternedNames()), Order.of(InternedNames())
    adjacency = Adjacency((no_rows(), no_rows()), 0, relations)
    has_text = np.empty(0, np.bool_)
    return GraphBase(entities, relations, adjacency, {}, {}, has_text, EntityVectors())
