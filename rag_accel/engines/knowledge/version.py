"""One version of a graph in memory: nothing in it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engine_api import LinkQuery
from rag_accel.engines.knowledge.adjacency import Adjacency, joined, split
from rag_accel.engines.knowledge.interned import InternedTriples
from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, as_ids
from rag_accel.engines.knowledge.words import best
from rag_accel.errors import GraphLinkError


class GraphVersion:
    """A ``GraphView`` of triples. Ids are places in the sorted names.

    Args:
        version: its number.
        triples: each once.
        texts: what is told of entities; an entity may have a text and no triple.
        vectors: ``[dim], float32`` of entities that have one.
    """

    def __init__(
        self,
        version: int,
        triples: InternedTriples,
        texts: Mapping[str, str],
        vectors: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self._version = version
        self._entities, self._relations = triples.entities, triples.relations
        self._texts = dict(texts)
        self._vectors = dict(vectors)
        heads, relations, tails = triples.rows.T
        self._adjacency = Adjacency(
            heads, relations, tails, len(self._entities), len(self._relations)
        )

    @property
    def version(self) -> int:
        """Return its number."""
        return self._version

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all entities, sorted."""
        return self._entities.names

    def find(self, asked: Sequence[LinkQuery]) -> Sequence[Ids]:
        """Return the entities each query means; see ``GraphView``."""
        return [self._find(one) for one in asked]

    def expand(self, asked: Sequence[Expansion]) -> Sequence[Edges]:
        """Return the edges of each expansion; those that ask alike are looked up as one."""
        groups: dict[Any, list[int]] = {}
        for place, one in enumerate(asked):
            groups.setdefault((one.relations, one.direction, one.fan_out), []).append(place)
        found: dict[int, Edges] = {}
        for (names, direction, fan_out), places in groups.items():
            parts = [asked[place].entities for place in places]
            whole = Expansion(joined(parts), names, direction, fan_out)
            edges = self._adjacency.expand(whole, self._followed(names))
            found |= zip(places, split(edges, list(map(len, parts))), strict=True)
        return [found[place] for place in range(len(asked))]

    def entity_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of entities."""
        return [self.names[one] for one in ids.tolist()]

    def relation_names(self, ids: Ids) -> Sequence[str]:
        """Return the names of relations."""
        return [self._relations.names[one] for one in ids.tolist()]

    def entity_texts(self, ids: Ids) -> Sequence[str]:
        """Return what is told of entities, an empty text where nothing is."""
        return [self._texts.get(self.names[one], "") for one in ids.tolist()]

    def _followed(self, names: tuple[str, ...] | None) -> Ids | None:
        if names is None:
            return None
        known = {self._relations.ids[name] for name in names if name in self._relations.ids}
        return as_ids(sorted(known))

    def _find(self, asked: LinkQuery) -> Ids:
        if asked.k <= 0 or not self.names:
            return np.empty(0, np.int64)
        if asked.names is not None:
            return self._named(asked.names, asked.k)
        if asked.text is not None:
            return self._entities.words.find(asked.text, asked.k)
        return self._nearest(asked.vector, asked.k)

    def _named(self, names: Sequence[str], k: int) -> Ids:
        """Return entities of these names; a name of no entity means one that differs in case."""
        found: dict[int, None] = {}
        for name in names:
            place = self._entities.ids.get(name)
            if place is None:
                place = self._entities.folded.get(name.casefold())
            if place is not None:
                found[place] = None
        return as_ids(list(found)[:k])

    @cached_property
    def _matrix(self) -> tuple[Ids, NDArray[np.float32]]:
        """Return which entities have a vector, and those, of length 1."""
        known = self._entities.ids
        ids = as_ids(sorted(known[name] for name in self._vectors if name in known))
        if not len(ids):
            return ids, np.empty((0, 0), np.float32)
        return ids, unit(np.stack([self._vectors[self.names[one]] for one in ids.tolist()]))

    def _nearest(self, vector: Any, k: int) -> Ids:
        ids, matrix = self._matrix
        if not len(ids):
            raise GraphLinkError(
                "the entities of a knowledge graph have no vectors",
                found=f"{len(self.names)} entities",
                hint="MemoryGraph.embed(...) or an ingestion makes them; link='words' needs none",
            )
        asked = np.asarray(vector, dtype=np.float32).reshape(-1)
        if len(asked) != matrix.shape[1]:
            raise GraphLinkError(
                "a query's vector has another dimension than those of the entities",
                found=str(len(asked)),
                valid=str(matrix.shape[1]),
                hint="embed entities and queries with one model",
            )
        return best(ids, matrix @ unit(asked[None, :])[0], k)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of length 1: ``[n, dim]``; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)
