"""One version of a graph in memory: nothing in it changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import LinkQuery
from rag_accel.engines.knowledge.adjacency import joined, split
from rag_accel.engines.knowledge.base import GraphBase
from rag_accel.engines.knowledge.edits import Edits
from rag_accel.engines.knowledge.interned import sorted_names
from rag_accel.engines.knowledge.overlay import resolved
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids
from rag_accel.engines.knowledge.vectors import nearest, unit
from rag_accel.engines.knowledge.words import NameWords
from rag_accel.errors import GraphLinkError


class GraphVersion:
    """A ``GraphView`` of a base and of edits over it; making it takes time by the number of edits.

    Parts that take time by the size of the graph are made at first use: the sorted names, and the
    words of the base for a search by words.

    Args:
        version: its number.
        base: the graph as it was merged.
        edits: edits since the merge; not changed any more. Their names are put into the tables of
            the base, so one thread at a time makes versions of it.
    """

    def __init__(self, version: int, base: GraphBase, edits: Edits) -> None:
        self.version = version
        self.base = base
        self._over = resolved(base, edits)
        self._is_edited = len(edits) > 0
        self._entities, self._relations = self._over.entities, self._over.relations

    @property
    def num_triples(self) -> int:
        return self._over.num_triples

    @cached_property
    def names(self) -> Sequence[str]:
        """Return the names of all entities, sorted."""
        return sorted_names(self._entities, self._over.is_there)

    def without_vector(self) -> list[str]:
        """Return the names of entities without a vector, sorted."""
        is_asked = self._over.is_there.copy()
        kept = np.setdiff1d(self.base.vectors.ids, self._over.hidden, assume_unique=True)
        is_asked[kept] = False
        is_asked[self._over.vectors.ids] = False
        return list(sorted_names(self._entities, is_asked))

    def merged(self) -> GraphBase:
        """Return all of it as a base, without unused names; from any thread."""
        if not self._is_edited:
            return self.base
        base = self._over.merged()
        with self._entities.table.lock:  # waits for a question that makes them
            has_words = self.base.words is not None
        if has_words:
            base.words = self._words.merged()
        return base.compacted()

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
        patch = self._over if self._over.has_edges else None
        for (names, direction, fan_out), places in groups.items():
            parts = [expansions[place].entities for place in places]
            whole = Expansion(joined(parts), names, direction, fan_out)
            edges = self.base.adjacency.expand(whole, self._followed(names), patch)
            found |= zip(places, split(edges, list(map(len, parts))), strict=True)
        return [found[place] for place in range(len(expansions))]

    def entity_names(self, ids: Ids) -> Sequence[str]:
        return self._entities.table.of(ids)

    def relation_names(self, ids: Ids) -> Sequence[str]:
        return self._relations.table.of(ids)

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        return list(map(self.text, self._entities.table.of(ids)))

    def text(self, name: str) -> str:
        """Return the text of an entity, empty where there is none."""
        changed = self._over.texts
        return (changed[name] if name in changed else self.base.texts.get(name)) or ""

    def _followed(self, names: tuple[str, ...] | None) -> Ids | None:
        if names is None:
            return None
        ids, num = self._relations.table.ids, len(self._relations)
        return as_ids([ids[name] for name in sorted(set(names)) if ids.get(name, num) < num])

    def _find(self, query: LinkQuery) -> Ids:
        if query.k <= 0 or not self._over.num_entities:
            return np.empty(0, np.int64)
        if query.names is not None:
            return self._named(query.names, query.k)
        if query.text is not None:
            return self._words.find(query.text, query.k, self._entities.rank)
        return self._nearest(query.vector, query.k)

    def _named(self, names: Sequence[str], k: int) -> Ids:
        """Return entities of these names; a name of no entity means one that differs in case."""
        table = self._entities.table
        found: dict[int, None] = {}
        for name in names:
            entity = table.ids.get(name, -1)
            if not self._has(entity):
                alike = filter(self._has, table.without_case(name))
                entity = min(alike, key=table.names.__getitem__, default=-1)
            if entity >= 0:
                found[entity] = None
        return as_ids(list(found)[:k])

    def _has(self, entity: int) -> bool:
        return 0 <= entity < len(self._entities) and self._over.has_entity(entity)

    @cached_property
    def _words(self) -> NameWords:
        base, table = self.base, self._entities.table
        with table.lock:
            if base.words is None:
                num = len(base.entities)
                base.words = NameWords.of(table.names[:num], base.uses > 0)
            if not self._is_edited:
                return base.words
            num = len(base.entities)
            changed = as_ids([use for use in self._over.uses if use < num])
            new = table.names[num : len(self._entities)]
            return base.words.edited(new, changed, self._over.is_there)

    def _nearest(self, vector: Any, k: int) -> Ids:
        held, fresh = self.base.vectors, self._over.vectors
        hidden = self._over.hidden
        if len(hidden) and np.isin(held.ids, hidden).all():
            held, hidden = fresh, hidden[:0]
        parts = [part for part in ((held, fresh) if held is not fresh else (held,)) if len(part)]
        if not parts:
            raise GraphLinkError(
                "the entities of a knowledge graph have no vectors",
                found=f"{self._over.num_entities} entities",
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
        return nearest(parts, hidden, unit(query[None, :])[0], k, self._entities.rank)
