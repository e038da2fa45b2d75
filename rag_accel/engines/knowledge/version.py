"""One version of a graph in memory: nothing in it changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import LinkQuery
from rag_accel.engines.knowledge.adjacency import joined, split
from rag_accel.engines.knowledge.changes import ChangedGraph, Edits, GraphBase
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids
from rag_accel.engines.knowledge.vectors import nearest, unit
from rag_accel.engines.knowledge.words import NameWords
from rag_accel.errors import GraphLinkError


class GraphVersion:
    """A ``GraphView`` of a base and of edits; making it takes time by the number of edits.

    Parts that take time by the size of the graph are made at first use: the sorted names, and the
    words of the base for a search by words.

    Args:
        version: its number.
        base: the graph as it was rebuilt.
        edits: edits since then; not changed any more.
    """

    def __init__(self, version: int, base: GraphBase, edits: Edits) -> None:
        self.version = version
        self.base = base
        self._graph = ChangedGraph(base, edits)
        self._is_edited = len(edits) > 0
        self._entities, self._relations = self._graph.entities, self._graph.relations

    @property
    def num_triples(self) -> int:
        return self._graph.num_triples

    @cached_property
    def names(self) -> Sequence[str]:
        """Return the names of all entities, sorted."""
        return self._sorted(self._graph.is_there)

    def without_vector(self) -> list[str]:
        """Return the names of entities without a vector, sorted."""
        is_asked = self._graph.is_there.copy()
        kept = np.setdiff1d(self._graph.held.ids, self._graph.hidden, assume_unique=True)
        for ids in (kept, self._graph.fresh.ids):
            is_asked[self._entities.places(ids)] = False
        return self._sorted(is_asked)

    def merged(self) -> GraphBase:
        """Return all of it as a base, without unused names; from any thread."""
        return self._graph.rebuilt() if self._is_edited else self.base

    def find(self, queries: Sequence[LinkQuery]) -> Sequence[Ids]:
        """Return the entities each query means; see ``GraphView``."""
        return [self._find(query) for query in queries]

    def expand(self, expansions: Sequence[Expansion]) -> Sequence[Edges]:
        """Return the edges of each expansion; equal ones are looked up as one."""
        groups: dict[Any, list[int]] = {}
        for place, expansion in enumerate(expansions):
            groups.setdefault(
                (expansion.relations, expansion.direction, expansion.fan_out), []
            ).append(place)
        found: dict[int, Edges] = {}
        for (names, direction, fan_out), places in groups.items():
            parts = [expansions[place].entities for place in places]
            whole = Expansion(joined(parts), names, direction, fan_out)
            edges = self._graph.expand(whole, self._followed(names))
            found |= zip(places, split(edges, list(map(len, parts))), strict=True)
        return [found[place] for place in range(len(expansions))]

    def entity_names(self, ids: Ids) -> Sequence[str]:
        return self._entities.of(ids)

    def relation_names(self, ids: Ids) -> Sequence[str]:
        return self._relations.of(ids)

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        return list(map(self.text, self._entities.of(ids)))

    def text(self, name: str) -> str:
        """Return the text of an entity, empty where there is none."""
        changed = self._graph.texts
        return (changed[name] if name in changed else self.base.texts.get(name)) or ""

    def _followed(self, names: tuple[str, ...] | None) -> Ids | None:
        if names is None:
            return None
        ids = as_ids(sorted({self._relations.id(name) for name in names}))
        return ids[ids >= 0]

    def _sorted(self, is_asked: NDArray[np.bool_]) -> list[str]:
        """Return the names of entities, ``[len(names)], bool``, sorted."""
        return self._entities.of(np.sort(self._entities.ids(np.flatnonzero(is_asked))))

    def _find(self, query: LinkQuery) -> Ids:
        if query.k <= 0 or not self._graph.num_entities:
            return np.empty(0, np.int64)
        if query.names is not None:
            return self._named(query.names, query.k)
        if query.text is not None:
            names = self._entities
            return names.ids(self._words.find(query.text, query.k, names.ids))
        return self._nearest(query.vector, query.k)

    def _named(self, names: Sequence[str], k: int) -> Ids:
        """Return entities of these names; a name of no entity means one that differs in case."""
        has = self._graph.has_entity
        found: dict[int, None] = {}
        for name in names:
            entity = self._entities.id(name)
            if not has(entity):
                alike = filter(has, self._entities.without_case(name))
                entity = min(alike, default=-1)
            if entity >= 0:
                found[entity] = None
        return as_ids(list(found)[:k])

    @cached_property
    def _words(self) -> NameWords:
        base = self.base
        if base.words is None:
            base.words = NameWords.of(base.entities.names)
        return self._graph.edited_words(base.words) if self._is_edited else base.words

    def _nearest(self, vector: Any, k: int) -> Ids:
        held, fresh, hidden = self._graph.held, self._graph.fresh, self._graph.hidden
        if len(hidden) and np.isin(held.ids, hidden).all():
            held, hidden = fresh, hidden[:0]
        parts = [part for part in ((held, fresh) if held is not fresh else (held,)) if len(part)]
        if not parts:
            raise GraphLinkError(
                "the entities of a knowledge graph have no vectors",
                found=f"{self._graph.num_entities} entities",
                hint="MemoryGraph.embed(...) or an ingestion makes them; link='words' needs none",
            )
        query: NDArray[np.float32] = np.asarray(vector, dtype=np.float32).reshape(-1)
        if len(query) != parts[0].rows.shape[1]:
            raise GraphLinkError(
                "a query's vector has another dimension than those of the entities",
                found=str(len(query)),
                valid=str(parts[0].rows.shape[1]),
                hint="embed entities and queries with one model",
            )
        return nearest(parts, hidden, unit(query[None, :])[0], k)
