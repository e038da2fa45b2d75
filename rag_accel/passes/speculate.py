"""Speculative edges: generations that may begin with what a search or reranking has so far.

    search.searching: SEARCHING@store(vector) -> docs
    answer.decoding: DECODING@llm(input, docs) -> answer  after search.searching

stays as it is. While the search runs, the answer is begun with the documents that it has found by
then, if they are likely to be final (HedraRAG section 4.3); ``requests/speculations.py`` drops it
if they are not. No primitive moves: the edge is drawn for ``explain`` and followed at run time.
"""

from __future__ import annotations

from collections.abc import Iterator

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph
from rag_accel.passes.context import PassContext

#: what may tell what it has found so far
FINDING = frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING})

#: what names the pass among ``passes``
SPECULATE = "speculate"


def speculative_edges(
    graph: PrimitiveGraph, context: PassContext
) -> Iterator[tuple[Primitive, Primitive]]:
    """Yield each search or reranking with the generation that waits for no other than it.

    Both run on engines of ours, and that of the generation computes prompts before they are asked
    for: a server is named for that, since it may charge for them. What a reducer of the user's
    makes of the documents is not known before.
    """
    if context.enabled is not None and SPECULATE not in context.enabled:
        return
    for generation in graph.primitives:
        engine = context.owned(generation)
        if generation.kind is not PrimitiveKind.DECODING or engine is None:
            continue
        if PrimitiveKind.PARTIAL_PREFILLING not in engine.kinds:
            continue
        waited = [graph.by_name[name] for name in generation.after if name in graph.by_name]
        searches = [one for one in waited if one.kind in FINDING]
        if len(searches) != 1 or context.owned(searches[0]) is None:
            continue
        read = searches[0].output
        if read in generation.inputs and read not in context.reduced:
            yield searches[0], generation
