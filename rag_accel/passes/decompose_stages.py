"""Stages cut into pieces their engine takes in one step (Teola section 4.2, Pass 2).

    best.reranking: RERANKING@reranker(input, docs) -> best  size=40 top_n=3

becomes, where the engine's largest efficient batch is 16,

    best.reranking.1: RERANKING@reranker(input, docs) -> best.reranking.1  size=13 slice=[0, 3]
    best.reranking.2: RERANKING@reranker(input, docs) -> best.reranking.2  size=13 slice=[1, 3]
    best.reranking.3: RERANKING@reranker(input, docs) -> best.reranking.3  size=14 slice=[2, 3]
    best.reranking: AGGREGATE(best.reranking.1, best.reranking.2, best.reranking.3) -> best
        after best.reranking.1, best.reranking.2, best.reranking.3  join="ranking" top_n=3

The slices queue, join batches and end independently of each other. The join keeps the name of what
was cut, so what waits for that, in later regions too, still does.

``slice=[i, n]`` is the half-open range ``[d * i // n, d * (i + 1) // n)`` of the ``d`` documents
that there are when it begins. ``size`` is how many were expected: with fewer, slices are smaller or
empty.

Only ``itemwise`` engines get slices: one that compares documents with each other needs them all.

Differs: slices are of equal size, where the paper fills all but the last. Only reranking is cut: a
search is one query and no stage embeds several texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rag_accel.engine_api import (
    Capability,
    EngineProfile,
)
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.passes.context import PassContext

MOST_SLICES: Final = 32
"""More slices only cost: each is work of its own to the scheduler."""


def decompose_stages(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Cut each reranking of more documents than its engine's ``max_batch`` into equal slices.

    Returns this very graph if nothing is too large for its engine, or no such engine is itemwise.
    """
    pieces = (
        piece
        for primitive in graph.primitives
        for piece in _cut(primitive, _num_slices(primitive, context))
    )
    return graph.edit(put=pieces)


def _num_slices(primitive: Primitive, context: PassContext) -> int:
    engine = itemwise_engine(primitive, context)
    if engine is None:
        return 1
    return min(-(-primitive.size // max(1, engine.max_batch)), MOST_SLICES)


def itemwise_engine(primitive: Primitive, context: PassContext) -> EngineProfile | None:
    """Return the engine of a whole reranking that may be cut; None of anything else."""
    engine = context.owned(primitive)
    is_slice = primitive.attribute("slice") is not None or primitive.attribute("fn") is not None
    if primitive.kind is not PrimitiveKind.RERANKING or is_slice or engine is None:
        return None
    return engine if Capability.ITEMWISE in engine.capabilities else None


def _cut(primitive: Primitive, count: int) -> Iterator[Primitive]:
    """Yield the slices of a primitive and their join, which takes its place."""
    if count == 1:
        return
    kept = tuple((key, value) for key, value in primitive.attributes if key != "top_n")
    slices: list[Primitive] = []
    for place in range(count):
        name = PrimitiveName(f"{primitive.name}.{place + 1}")
        low, high = primitive.size * place // count, primitive.size * (place + 1) // count
        slices.append(
            replace(
                primitive,
                name=name,
                output=ValueName(name),
                size=high - low,
                attributes=(*kept, ("slice", (place, count))),
            )
        )
    yield from slices
    yield joined_ranking(primitive, slices)


def joined_ranking(
    primitive: Primitive, slices: Sequence[Primitive], after: Sequence[PrimitiveName] = ()
) -> Primitive:
    """Return the primitive that joins the slices' rankings, named like the one that was cut."""
    top_n = primitive.attribute("top_n")
    told = () if top_n is None else (("top_n", top_n),)
    return replace(
        primitive,
        kind=PrimitiveKind.AGGREGATE,
        engine=None,
        inputs=tuple(ValueName(piece.name) for piece in slices),
        after=tuple(dict.fromkeys((*(piece.name for piece in slices), *after))),
        size=1,
        attributes=(("join", "ranking"), *told),
    )
