"""Dependency pruning: primitives wait only for what they read (Teola section 4.2, Pass 1).

    search.embedding: EMBEDDING@embedder(input) -> search.vector  after plan.decoding

becomes, where nothing of the plan is read,

    search.embedding: EMBEDDING@embedder(input) -> search.vector

Differs: the paper keeps data dependencies only. Here two primitives also keep their order wherever
a user could notice that it is gone:

- Of one value, writing stays before or after reading and writing. A reduced value is the
  exception: its parts are folded in the order of the stages, so its writers need none.
- User code keeps its place among everything: functions that are not declared pure, conditions,
  borrowed engines, the reducer of a value that is read, a user's object that is iterated, for its
  documents or by a pure function.
  It may change what others read (an index, a list in place), and it must neither run after a
  failure nor be left out because a later node would have failed.
- An ingestion keeps its place too: it changes what is found.
- Work of one engine that is not pure stays in order: its results may depend on it.
- What may stream to the caller waits for all it waited for: no text is seen before a failure.

What is left to reorder is work of owned engines and pure functions. Turning a value into text
counts as free of effects, and where two primitives without an order both fail, either error may
end the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.order import topological
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.passes.context import PassContext
from rag_accel.passes.ordering import Earlier, all_earlier

#: Kinds whose results are documents.
FINDS_DOCUMENTS = frozenset(
    {PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING, PrimitiveKind.PRUNING}
)


def prune_dependencies(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Drop the waits that no value and no effect asks for, and recompute every depth.

    What was waited for through a dropped wait, and is still needed, is waited for directly; so is
    all of earlier regions. A primitive that nothing waits for any more has depth 0. Returns this
    very graph if nothing can be dropped.
    """
    earlier = all_earlier(graph)
    fixed: set[PrimitiveName] = set()
    for name in earlier:
        if not _is_movable(graph.by_name[name], graph, earlier, fixed, context):
            fixed.add(name)
    needed: dict[PrimitiveName, frozenset[PrimitiveName]] = {}
    for primitive in graph.primitives:
        needed[primitive.name] = earlier[primitive.name]
        if primitive.name not in fixed and not _may_stream(primitive, graph):
            needed[primitive.name] = frozenset(
                name
                for name in earlier[primitive.name]
                if name not in graph.by_name
                or name in fixed
                or _must_keep_order(graph.by_name[name], primitive, context)
            )
    waits = _fewest_waits(graph, needed)
    return graph.edit(put=_rewired(graph, waits))


def _is_movable(
    primitive: Primitive,
    graph: PrimitiveGraph,
    earlier: Earlier,
    fixed: Set[PrimitiveName],
    context: PassContext,
) -> bool:
    """Tell whether it runs no user code; ``fixed`` are all primitives before it that may."""
    if primitive.reads_all or not context.reduced.isdisjoint(primitive.inputs):
        return False
    if primitive.attribute("pure") is not None:
        written = (writer.name for value in primitive.inputs for writer in graph.writers(value))
        return fixed.isdisjoint(earlier[primitive.name].intersection(written))
    if context.owned(primitive) is None or primitive.kind is PrimitiveKind.INGESTION:
        return False
    if primitive.kind is not PrimitiveKind.RERANKING:
        return True
    # Documents of others may be an iterator.
    writers = graph.writers(primitive.inputs[-1])
    return any(writer.name in earlier[primitive.name] for writer in writers) and all(
        (writer.kind in FINDS_DOCUMENTS and context.owned(writer) is not None)
        or (writer.attribute("union") is not None and writer.name not in fixed)
        for writer in writers
    )


def _may_stream(primitive: Primitive, graph: PrimitiveGraph) -> bool:
    return primitive.kind is PrimitiveKind.DECODING and not graph.successors[primitive.name]


def _must_keep_order(first: Primitive, then: Primitive, context: PassContext) -> bool:
    if first.output is not None:
        if first.output in then.inputs:
            return True
        if first.output == then.output and first.output not in context.reduced:
            return True
    return then.output in first.inputs or _share_an_impure_engine(first, then, context)


def _share_an_impure_engine(first: Primitive, then: Primitive, context: PassContext) -> bool:
    if first.engine is None or then.engine is None:
        return False
    one_engine, other = context.engines[first.engine], context.engines[then.engine]
    # Two names may stand for one engine; equal profiles are all that tells.
    return one_engine == other and not one_engine.pure


def _fewest_waits(
    graph: PrimitiveGraph, needed: Earlier
) -> dict[PrimitiveName, tuple[PrimitiveName, ...]]:
    """Keep the waits there are and are needed; add what of the rest no other one implies."""
    place = {name: index for index, name in enumerate((*graph.external, *graph.by_name))}
    implied: dict[PrimitiveName, frozenset[PrimitiveName]] = {}
    waits: dict[PrimitiveName, tuple[PrimitiveName, ...]] = {}
    for name in topological(graph.successors):
        wanted = needed[name]
        by_others = frozenset[PrimitiveName]().union(
            *(implied.get(source, ()) for source in wanted)
        )
        implied[name] = wanted | by_others
        kept = [source for source in graph.by_name[name].after if source in wanted]
        added = sorted(wanted.difference(kept, by_others), key=lambda source: place[source])
        waits[name] = (*kept, *added)
    return waits


def _rewired(
    graph: PrimitiveGraph, waits: Mapping[PrimitiveName, Sequence[PrimitiveName]]
) -> Iterator[Primitive]:
    waited_for = {source for sources in waits.values() for source in sources}
    for primitive in graph.primitives:
        is_new_end = graph.successors[primitive.name] and primitive.name not in waited_for
        depth = 0 if is_new_end else primitive.depth
        yield replace(primitive, after=tuple(waits[primitive.name]), depth=depth)
