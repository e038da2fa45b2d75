"""Two hops from an entity: LlamaIndex' default store, and ours with the store's own triplets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.graph_stores.types import Triplet

from bench.graph.property_graph import DEPTH
from bench.measure import Pairs, alternate
from rag_accel.engine_api import LinkQuery
from rag_accel.engines import MemoryGraph
from rag_accel.engines.knowledge.protocol import Edges, Expansion, GraphView, Ids
from rag_accel.sample.source_triples import Triple

#: more than any entity has
ALL = 10**6

Expand = Callable[[str], list[Triplet]]
"""Return the triplets around an entity of that name."""


@dataclass(frozen=True, slots=True)
class Around:
    """What one expansion took, and the names in the triplets that it gave."""

    seconds: float
    triples: frozenset[Triple]


def plain_expand(store: SimplePropertyGraphStore) -> Expand:
    """Return the store's own expansion, without its limit of 30 triplets."""

    def expand(name: str) -> list[Triplet]:
        return store.get_rel_map([store.graph.nodes[name]], depth=DEPTH, limit=ALL)

    return expand


def our_expand(graph: MemoryGraph, store: SimplePropertyGraphStore) -> Expand:
    """Return an expansion over ``graph`` that gives the store's triplets, each once.

    As the store does it, the first hop takes edges in both directions, and the second begins at the
    tails of the first.
    """
    nodes, relations = store.graph.nodes, store.graph.relations

    def expand(name: str) -> list[Triplet]:
        view = graph.view()
        (seed,) = view.find([LinkQuery(1, names=(name,))])
        (first,) = view.expand([Expansion(seed, fan_out=ALL)])
        tails = np.unique(first.others[first.forward])
        (second,) = view.expand([Expansion(tails, fan_out=ALL)])
        found = dict.fromkeys((*_triples(view, seed, first), *_triples(view, tails, second)))
        return [
            (nodes[head], relations[f"{head}_{label}_{tail}"], nodes[tail])
            for head, label, tail in found
        ]

    return expand


def _triples(view: GraphView, entities: Ids, edges: Edges) -> list[Triple]:
    sources = np.repeat(entities, np.diff(edges.offsets))
    heads = view.entity_names(np.where(edges.forward, sources, edges.others))
    tails = view.entity_names(np.where(edges.forward, edges.others, sources))
    return list(zip(heads, view.relation_names(edges.relations), tails, strict=True))


def expansions(plain: Expand, ours: Expand, seeds: Sequence[str]) -> Pairs[Around]:
    """Expand every seed in both arms, in turn; one expansion of each before does not count."""

    def timed(expand: Expand) -> Callable[[int], Around]:
        def run(turn: int) -> Around:
            started = time.perf_counter()
            found = expand(seeds[turn])
            return Around(time.perf_counter() - started, frozenset(map(_named, found)))

        return run

    return alternate(timed(plain), timed(ours), len(seeds), warm_up=1)


def _named(triplet: Any) -> Triple:
    head, relation, tail = triplet
    return head.id, relation.id, tail.id
