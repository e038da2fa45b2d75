"""Triples as compressed adjacency: the edges of any number of entities by array operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.protocol import Edges, Expansion, Ids, no_edges


class Adjacency:
    """The edges of every entity in both directions, in the order that ``Edges`` states.

    Ids of entities and relations must be in the order of their names. Self-loops are left out.

    Args:
        heads, relations, tails: ``[n], int64`` each, the triples, each once, in any order.
        num_entities: ids are below it.
        num_relations: ids of relations are below it.
    """

    def __init__(
        self, heads: Ids, relations: Ids, tails: Ids, num_entities: int, num_relations: int
    ) -> None:
        kept = heads != tails
        heads, relations, tails = heads[kept], relations[kept], tails[kept]
        self._num_relations = max(1, num_relations)
        self._num_forward = len(heads)
        outgoing = np.lexsort((tails, relations, heads))
        incoming = np.lexsort((heads, relations, tails))
        self._others = np.concatenate((tails[outgoing], heads[incoming]))
        self._relations = np.concatenate((relations[outgoing], relations[incoming]))
        self._keys = tuple(
            ends[order] * self._num_relations + relations[order]
            for ends, order in ((heads, outgoing), (tails, incoming))
        )
        #: where the edges of each entity begin, among all of both directions
        self._starts = tuple(
            np.searchsorted(keys, np.arange(num_entities + 1) * self._num_relations) + offset
            for keys, offset in zip(self._keys, (0, self._num_forward), strict=True)
        )

    def expand(self, asked: Expansion, relations: Ids | None) -> Edges:
        """Return the edges of one expansion; ``relations`` are the ids of those it follows."""
        if not len(asked.entities):
            return no_edges(0)
        ranges = [
            self._bounded(way, asked, relations)
            for way, name in enumerate(("out", "in"))
            if asked.direction in (name, "both")
        ]
        starts = np.concatenate([start for start, _ in ranges], axis=1)
        counts = np.concatenate([count for _, count in ranges], axis=1)
        places = _flat(starts.ravel(), counts.ravel())
        offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
        return Edges(
            offsets.astype(np.int64),
            self._relations[places],
            self._others[places],
            places < self._num_forward,
        )

    def _bounded(self, way: int, asked: Expansion, relations: Ids | None) -> tuple[Ids, Ids]:
        """Return where the edges of each entity stand, by relation: ``[n, m]`` each."""
        starts, stops = self._ranges(way, asked.entities, relations)
        counts = stops - starts
        before = np.cumsum(counts, axis=1) - counts
        return starts, np.clip(asked.fan_out - before, 0, counts)

    def _ranges(self, way: int, entities: Ids, relations: Ids | None) -> tuple[Ids, Ids]:
        if relations is None:
            starts = self._starts[way]
            return starts[entities][:, None], starts[entities + 1][:, None]
        wanted = entities[:, None] * self._num_relations + relations[None, :]
        offset = self._num_forward if way else 0
        keys = self._keys[way]
        return (
            np.searchsorted(keys, wanted, "left") + offset,
            np.searchsorted(keys, wanted, "right") + offset,
        )


def _flat(starts: Ids, counts: Ids) -> Ids:
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
