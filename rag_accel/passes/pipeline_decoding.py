"""Pipelined decoding: items of a list go on while the rest is generated (Teola 4.2, Pass 4).

    expand.decoding: DECODING@llm(input) -> text
    list.function: FUNCTION(text) -> list  after expand.decoding  items=2
    one.function: FUNCTION(list) -> one  after list.function  item=0
    search.embedding: EMBEDDING@embedder(one) -> search.vector  after one.function

becomes, on an engine that gives its text piece by piece,

    one.function: PARTIAL_DECODING(list) -> one  item=0 text="expand.decoding" list="list.function"

A partial decoding starts with the decoding it takes its item from and ends as soon as that item is
written; what reads the item goes on at once. An item that the text does not hold is taken from the
list when that is known, as before: so it does not matter whether the text has fewer or more items
than were expected, and every value is the same with and without this pass.

Only embeddings, searches and rerankings of owned engines go ahead of the end of the list. Whatever
else came after the list still does: user code, borrowed engines, and what could notice the
order.

Differs: the paper's decoding ends as a chain of partial ones. Here it stays whole, so
that its text, its failure and its cancellation are those of any other decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rag_accel.engine_api import Capability
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.passes.context import PassContext
from rag_accel.passes.ordering import all_earlier

CREDIT_BATCHES = 2
"""Batches of items that may be on their way over one edge."""

_GOES_AHEAD = frozenset({PrimitiveKind.EMBEDDING, PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING})


def pipeline_decoding(graph: PrimitiveGraph, context: PassContext) -> PrimitiveGraph:
    """Let items be taken off each list that is read off a streamed completion.

    A partial decoding names in its attributes the decoding (``text``), the function that reads the
    whole list (``list``), and how many items of it may be on their way at once (``credit``).
    Depths stay as they are: the items are urgent, and so is the decoding that they come from.
    Returns this very graph if there is no such list.
    """
    for primitive in graph.primitives:
        if primitive.kind is PrimitiveKind.FUNCTION and primitive.attribute("items") is not None:
            source = _source(graph, primitive, context)
            if source is not None:
                graph = _with_items(graph, source, context)
    return graph


@dataclass(frozen=True, slots=True)
class _ItemSource:
    """A decoding and the function that reads a list off all it wrote."""

    decoding: Primitive
    read: Primitive

    @property
    def written(self) -> frozenset[ValueName | None]:
        return frozenset({self.decoding.output, self.read.output})

    @property
    def used(self) -> frozenset[ValueName | None]:
        return self.written.union(self.decoding.inputs, self.read.inputs)


def _source(graph: PrimitiveGraph, read: Primitive, context: PassContext) -> _ItemSource | None:
    """Return where a list comes from, if its text can be read while it is written."""
    if not read.inputs or read.output is None:
        return None
    writers = graph.writers(read.inputs[0])
    if len(writers) != 1 or len(graph.writers(read.output)) != 1:
        return None
    decoding = writers[0]
    engine = context.owned(decoding)
    is_streamed = engine is not None and Capability.STREAM in engine.capabilities
    is_decoding = decoding.kind is PrimitiveKind.DECODING and decoding.name in read.after
    if not (is_streamed and is_decoding) or {decoding.output, read.output} & context.reduced:
        return None
    return _ItemSource(decoding, read)


def _with_items(graph: PrimitiveGraph, source: _ItemSource, context: PassContext) -> PrimitiveGraph:
    """Return the graph with partial decodings; where one may not go ahead, the list is awaited."""
    ahead = {
        primitive.name
        for primitive in graph.primitives
        if _may_go_ahead(primitive, source, context)
    }
    taken = {
        decoding.name: decoding for decoding in _partial_decodings(graph, source, ahead, context)
    }
    if not taken:
        return graph
    read, was_earlier = source.read.name, all_earlier(graph)
    earlier: dict[PrimitiveName, frozenset[PrimitiveName]] = {}
    rewritten: list[Primitive] = []
    for old in graph.primitives:
        primitive = taken.get(old.name, old)
        before = _behind(primitive, earlier)
        if (
            read in was_earlier[primitive.name]
            and primitive.name not in taken
            and primitive.name not in ahead
        ):
            if read not in before:
                primitive = replace(primitive, after=(*primitive.after, read))
            before = _behind(primitive, earlier)
        earlier[primitive.name] = before
        rewritten.append(primitive)
    # A primitive that waits for something did so before, so order and depths hold.
    return PrimitiveGraph(tuple(rewritten), graph.external)


def _behind(
    primitive: Primitive, earlier: dict[PrimitiveName, frozenset[PrimitiveName]]
) -> frozenset[PrimitiveName]:
    return frozenset(primitive.after).union(*(earlier.get(name, ()) for name in primitive.after))


def _partial_decodings(
    graph: PrimitiveGraph, source: _ItemSource, ahead: set[PrimitiveName], context: PassContext
) -> Iterator[Primitive]:
    decoding, read = source.decoding, source.read
    others = (name for name in read.after if name != decoding.name)
    after = tuple(dict.fromkeys((*decoding.after, *others)))
    for primitive in graph.primitives:
        readers = [
            graph.by_name[name] for name in graph.successors[primitive.name] if name in ahead
        ]
        if _takes_item(primitive, source, context) and readers:
            engines = (context.owned(reader) for reader in readers)
            batch = min(engine.max_batch for engine in engines if engine is not None)
            given = {"text": decoding.name, "list": read.name, "credit": CREDIT_BATCHES * batch}
            attributes = (*primitive.attributes, *given.items())
            kind = PrimitiveKind.PARTIAL_DECODING
            yield replace(primitive, kind=kind, after=after, attributes=attributes)


def _takes_item(primitive: Primitive, source: _ItemSource, context: PassContext) -> bool:
    return (
        primitive.kind is PrimitiveKind.FUNCTION
        and primitive.attribute("item", -1) >= 0
        and primitive.inputs == (source.read.output,)
        and primitive.after == (source.read.name,)
        and primitive.output not in source.used
        and primitive.output not in context.reduced
    )


def _may_go_ahead(primitive: Primitive, source: _ItemSource, context: PassContext) -> bool:
    """Tell whether it cannot be noticed that it runs before the list has ended."""
    engine = context.owned(primitive)
    if engine is None or primitive.kind not in _GOES_AHEAD or primitive.reads_all:
        return False
    if not source.written.isdisjoint(primitive.inputs) or not context.reduced.isdisjoint(
        primitive.inputs
    ):
        return False
    # Two names may stand for one engine; equal profiles are all that tells.
    shares = engine == context.owned(source.decoding)
    return primitive.output not in source.used and (engine.pure or not shares)
