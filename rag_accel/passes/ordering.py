"""Primitives that have surely ended when another begins, also across regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from rag_accel.graph.order import topological
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName

Earlier: TypeAlias = Mapping[PrimitiveName, frozenset[PrimitiveName]]
Freed: TypeAlias = Mapping[PrimitiveName, tuple[PrimitiveName, ...]]


def all_earlier(graph: PrimitiveGraph) -> Earlier:
    """Return for each primitive everything that has ended when it begins, earlier regions too."""
    earlier: dict[PrimitiveName, frozenset[PrimitiveName]] = {}
    for name in topological(graph.successors):
        after = graph.by_name[name].after
        behind = (earlier[source] for source in after if source in earlier)
        earlier[name] = frozenset(after).union(*behind)
    return earlier


def freed_from(before: PrimitiveGraph, now: PrimitiveGraph) -> Freed:
    """Return what the end of a primitive told about others before and does not tell now.

    What was joined with another is told of by that one.
    """
    earlier, still = all_earlier(before), all_earlier(now)
    order = (*before.external, *(name for name in before.by_name if name in now.by_name))
    freed = {
        name: tuple(other for other in order if other in earlier[name] and other not in still[name])
        for name in now.by_name
        if name in earlier
    }
    return {name: others for name, others in freed.items() if others}


def restore_waits(graph: PrimitiveGraph, freed: Freed) -> PrimitiveGraph:
    """Let what waits for a primitive of an earlier region wait for all that this once told.

        b.embedding: EMBEDDING@embedder(a)  after x.searching

    where ``x.searching`` was freed from ``a.decoding``, becomes

        b.embedding: EMBEDDING@embedder(a)  after x.searching, a.decoding
    """
    if freed.keys().isdisjoint(graph.external):
        return graph
    primitives = tuple(_restored(primitive, graph, freed) for primitive in graph.primitives)
    waited = (source for primitive in primitives for source in primitive.after)
    external = tuple(dict.fromkeys(source for source in waited if source not in graph.by_name))
    return PrimitiveGraph(primitives, external)


def _restored(primitive: Primitive, graph: PrimitiveGraph, freed: Freed) -> Primitive:
    more = (
        name
        for source in primitive.after
        if source not in graph.by_name
        for name in freed.get(source, ())
    )
    after = tuple(dict.fromkeys((*primitive.after, *more)))
    return primitive if after == primitive.after else replace(primitive, after=after)
