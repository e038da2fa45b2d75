"""Reranking of each search's documents as soon as they arrive (Teola 4.2, Passes 2 and 4).

    all.function: FUNCTION(found1, found2) -> found  after a.searching, b.searching
        fn=@merged union="prefix"
    best.reranking: RERANKING@reranker(input, found) -> best  after all.function  top_n=3

becomes, on an ``itemwise`` engine,

    best.reranking.1: RERANKING@reranker(input, found1) -> best.reranking.1  after a.searching
        fn=@merged
    best.reranking.2: RERANKING@reranker(input, found1, found2) -> best.reranking.2
        after a.searching, b.searching  fn=@merged
    best.reranking: AGGREGATE(best.reranking.1, best.reranking.2) -> best
        after best.reranking.1, best.reranking.2, all.function  join="ranking" top_n=3

Each slice takes the documents that its last search adds to the union of those before it, so every
document is scored once and the join sees them in the order of the whole. Searches that end together
are reranked in one step anyway; where their queries come one after the other, because they are
taken off a list that is being written, reranking overlaps with the writing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.option_inputs import probable
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.graph.stages.retrieval import PROBABLE_DOCUMENTS
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose_stages import itemwise_engine, joined_ranking
from rag_accel.passes.ordering import all_earlier


def rerank_by_source(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Cut each reranking of the union of several searches into one slice for each of them.

    Returns this very graph if there is none.
    """
    put: list[Primitive] = []
    for primitive in graph.primitives:
        union = _union(primitive, graph, context)
        sources = [] if union is None else _sources(union, graph, context)
        if union is not None and len(sources) > 1:
            earlier = all_earlier(graph)[primitive.name]
            writers = graph.writers(primitive.inputs[0])
            query = [writer.name for writer in writers if writer.name in earlier]
            slices = list(_slices(primitive, union, sources, query))
            put += [*slices, joined_ranking(primitive, slices, after=primitive.after)]
    return graph.edit(put=put)


def _union(primitive: Primitive, graph: PrimitiveGraph, context: PassContext) -> Primitive | None:
    """Return the function that makes the documents of a reranking, if it is such a union."""
    if itemwise_engine(primitive, context) is None or len(primitive.inputs) != 2:
        return None
    union = _only_writer(primitive.inputs[1], graph, context)
    if union is None or union.attribute("union") is None or union.name not in primitive.after:
        return None
    return union


def _sources(union: Primitive, graph: PrimitiveGraph, context: PassContext) -> list[Primitive]:
    """Return the searches whose results a union joins, in its order; none if it joins others."""
    found = [_only_writer(name, graph, context) for name in union.inputs]
    searches = [
        primitive
        for primitive in found
        if primitive is not None and primitive.kind is PrimitiveKind.SEARCHING
    ]
    names = {search.name for search in searches}
    is_all = len(names) == len(found) and names <= set(union.after)
    return searches if is_all else []


def _only_writer(value: ValueName, graph: PrimitiveGraph, context: PassContext) -> Primitive | None:
    writers = graph.writers(value)
    return writers[0] if len(writers) == 1 and value not in context.reduced else None


def _slices(
    primitive: Primitive, union: Primitive, sources: list[Primitive], query: list[PrimitiveName]
) -> Iterator[Primitive]:
    """Yield the slices; each waits for the query and for all but the searches after its own."""
    kept = tuple((key, value) for key, value in primitive.attributes if key != "top_n")
    names = {source.name for source in sources}
    others = (
        *(name for name in union.after if name not in names),
        *(name for name in primitive.after if name != union.name),
        *query,
    )
    for place, source in enumerate(sources, start=1):
        name = PrimitiveName(f"{primitive.name}.{place}")
        yield replace(
            primitive,
            name=name,
            inputs=(primitive.inputs[0], *union.inputs[:place]),
            output=ValueName(name),
            after=tuple(dict.fromkeys((*(source.name for source in sources[:place]), *others))),
            size=probable(source.attribute("top_k", 1), PROBABLE_DOCUMENTS),
            attributes=(*kept, ("fn", union.attribute("fn"))),
        )
