"""A LlamaIndex program as a RAGraph whose stages call the program's own parts.

Each retriever, postprocessor, query transform and synthesizer is a stage. Query engines are none:
LlamaIndex's two that only hand values from part to part are taken apart, and so are its retrievers
that ask others in order. Nothing else that holds parts is known to run them in an order that a
graph has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import getattr_static, isawaitable
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.property_graph import PGRetriever
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine, TransformQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import QueryBundle

from rag_accel.errors import ConfigError, TranslationError
from rag_accel.graph.framework_calls import FrameworkCall, PlanBuilder
from rag_accel.graph.ragraph import RAGraph

#: what runs the parts of engines and retrievers, and has to be inherited unchanged
_RUNNING = (
    *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve", "_retrieve", "_aretrieve"),
    *("_apply_node_postprocessors", "_async_apply_node_postprocessors", "_deduplicate"),
    *("_handle_recursive_retrieval", "_ahandle_recursive_retrieval"),
    *("_run_sync_queries", "_run_async_queries"),
)
#: calls a part with a prefix, which is that of its methods for loops, and the values of its stage
Way = Callable[..., Any]


class _FoundNodes:
    """A retriever's nodes in its place, for the retriever that asked it."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes

    def retrieve(self, query: QueryBundle) -> list[Any]:
        return self._nodes

    async def aretrieve(self, query: QueryBundle) -> list[Any]:
        return self._nodes


def _gathering(held: str) -> Way:
    """Return how a retriever makes its result of the nodes that others have found.

    It is the retriever's own code, in a copy that holds the nodes in place of the others: the
    events are its own, too.
    """

    def gather(part: Any, prefix: str, query: QueryBundle, *found: list[Any]) -> Any:
        again = copy.copy(part)
        setattr(again, held, [_FoundNodes(nodes) for nodes in found])
        return _retrieve(again, prefix, query)

    return gather


def _retrieve(part: Any, prefix: str, query: QueryBundle) -> Any:
    return getattr(part, f"{prefix}retrieve")(query)


def _postprocess(part: Any, prefix: str, query: QueryBundle, nodes: list[Any]) -> Any:
    return getattr(part, f"{prefix}postprocess_nodes")(nodes, query_bundle=query)


def _synthesize(part: Any, prefix: str, query: QueryBundle, nodes: list[Any]) -> Any:
    return getattr(part, f"{prefix}synthesize")(query=query, nodes=nodes)


def checked_query(given: Any) -> str | QueryBundle:
    """Return what a request brings along, as a retriever by itself is given it.

    Raises:
        ConfigError: if it is neither a text nor a query.
    """
    if isinstance(given, str | QueryBundle):
        return given
    raise ConfigError(
        "this is no query",
        where="input",
        found=f"{type(given).__module__}.{type(given).__qualname__}",
        valid="a text or a QueryBundle",
    )


def as_query(given: Any) -> QueryBundle:
    """Return the query that all parts share. Raises as ``checked_query`` does."""
    query = checked_query(given)
    return QueryBundle(query) if isinstance(query, str) else query


def graph_of(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a program as a graph of the input ``input``, a text or a ``QueryBundle``.

    Args:
        program: a query engine or a retriever.
        name: names the program, for what the scheduler learns of it.
        holder: what must live as long as the graph.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    is_engine = isinstance(program, BaseQueryEngine)
    # LlamaIndex has one trace of a query, which the outermost engine begins.
    trace = partial(program.callback_manager.as_trace, "query") if is_engine else nullcontext
    builder = PlanBuilder(RAGraph("input"))

    def add(stage: str, part: Any, way: Way, *inputs: str, after: Sequence[str] = ()) -> str:
        def call(*values: Any) -> Any:
            with trace():
                return way(part, "", *values)

        async def acall(*values: Any) -> Any:
            with trace():
                found = way(part, "a", *values)
                return await found if isawaitable(found) else found

        forms = FrameworkCall(type(part).__name__, call, acall, name, holder)
        return builder.add(stage, forms, *inputs, after=after)

    def add_engine(engine: Any, query: str, path: str) -> str:
        if _runs_as(engine, TransformQueryEngine):
            transform = _of_kind(engine._query_transform, BaseQueryTransform, f"{path}.transform")
            metadata = engine._transform_metadata  # its transform has no form for loops
            changed = add("transform", transform, lambda part, _, q: part.run(q, metadata), query)
            return add_engine(engine._query_engine, changed, f"{path}.engine")
        if not _runs_as(engine, RetrieverQueryEngine):
            raise _not_declared(engine, path, "RetrieverQueryEngine, TransformQueryEngine")
        nodes = add_retriever(engine._retriever, query, f"{path}.retriever")
        for place, part in enumerate(engine._node_postprocessors):
            _of_kind(part, BaseNodePostprocessor, f"{path}.postprocessors.{place}")
            nodes = add("postprocessor", part, _postprocess, query, nodes)
        path = f"{path}.synthesizer"
        synthesizer = _of_kind(engine._response_synthesizer, BaseSynthesizer, path)
        if synthesizer._streaming:
            raise _not_declared(synthesizer, path, "one that does not stream", "streaming=True")
        return add("synthesizer", synthesizer, _synthesize, query, nodes)

    def add_retriever(
        retriever: Any, query: str, path: str, stage: str = "retriever", after: Sequence[str] = ()
    ) -> str:
        _of_kind(retriever, BaseRetriever, path)
        held = _held_in_order(retriever)
        if held is None:
            return add(stage, retriever, _retrieve, query, after=after)
        found: list[str] = []
        for place, part in enumerate(getattr(retriever, held)):
            before = found[-1:] or after
            found.append(add_retriever(part, query, f"{path}.{place}", f"{stage}.{place}", before))
        return add(stage, retriever, _gathering(held), query, *found, after=after)

    is_alone = not is_engine and _held_in_order(program) is None
    query = builder.add("query", checked_query if is_alone else as_query, "input")
    translate = add_engine if is_engine else add_retriever
    return builder.end(translate(program, query, "program"))


def _held_in_order(retriever: Any) -> str | None:
    """Return the attribute with the retrievers that one asks in order; None if it is a leaf.

    With ``use_async`` they run side by side on one loop, which only the retriever itself does.
    """
    if _runs_as(retriever, PGRetriever):
        return None if retriever.use_async else "sub_retrievers"
    if _runs_as(retriever, QueryFusionRetriever):
        # With more queries a model writes them, and how many there are is known only then.
        return None if retriever.use_async or retriever.num_queries > 1 else "_retrievers"
    return None


def _runs_as(obj: Any, cls: type[Any]) -> bool:
    """Tell whether an object runs its parts exactly as ``cls`` does."""
    return isinstance(obj, cls) and all(
        getattr_static(obj, name, None) is getattr_static(cls, name, None) for name in _RUNNING
    )


def _of_kind(part: Any, kind: type[Any], path: str) -> Any:
    if not isinstance(part, kind):
        raise _not_declared(part, path, f"a {kind.__name__}")
    return part


def _not_declared(part: Any, path: str, valid: str, found: str | None = None) -> TranslationError:
    return TranslationError(
        "a part of the program is not declared",
        where=path,
        found=found or f"{type(part).__module__}.{type(part).__qualname__}",
        valid=f"{valid}, not accelerated and with LlamaIndex's own methods",
        hint="accelerate(...) runs any program",
    )
