"""A LlamaIndex program as a RAGraph whose stages call the program's own parts.

Each retriever, postprocessor, query transform and synthesizer is a stage. Query engines are none:
LlamaIndex's two that only hand values from part to part are taken apart, and so are its retrievers
that ask others in order. Nothing else that holds parts is known to run them in an order that a
graph has.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
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

INPUT = "input"

#: by the class of an engine, what it has to inherit unchanged to be taken apart
_ENGINES: dict[type, tuple[str, ...]] = {
    RetrieverQueryEngine: (
        *("query", "aquery", "_query", "_aquery", "retrieve", "aretrieve"),
        *("_apply_node_postprocessors", "_async_apply_node_postprocessors"),
    ),
    TransformQueryEngine: ("query", "aquery", "_query", "_aquery"),
}
_RETRIEVING = (
    *("retrieve", "aretrieve", "_retrieve", "_aretrieve"),
    *("_handle_recursive_retrieval", "_ahandle_recursive_retrieval"),
)


@dataclass(frozen=True, slots=True)
class Way:
    """The two forms in which LlamaIndex calls parts of a kind.

    Args:
        call: in a thread, with the part and the values of its stage.
        acall: on a loop.
    """

    call: Callable[..., Any]
    acall: Callable[..., Awaitable[Any]]


RETRIEVE = Way(
    lambda part, query: part.retrieve(query),
    lambda part, query: part.aretrieve(query),
)
POSTPROCESS = Way(
    lambda part, query, nodes: part.postprocess_nodes(nodes, query_bundle=query),
    lambda part, query, nodes: part.apostprocess_nodes(nodes, query_bundle=query),
)
SYNTHESIZE = Way(
    lambda part, query, nodes: part.synthesize(query=query, nodes=nodes),
    lambda part, query, nodes: part.asynthesize(query=query, nodes=nodes),
)


class ComponentCall(FrameworkCall):
    """A call of one part, as the program around it makes it.

    Args:
        part: the part.
        way: the forms of the call.
        traces: whose handlers hear of a trace around it, as of one around a query; None if the part
            begins its own.
        program: names the program.
        holder: what must live as long as this.
    """

    def __init__(
        self, part: Any, way: Way, traces: CallbackManager | None, program: str, holder: object
    ) -> None:
        super().__init__(program)
        self.__name__ = type(part).__name__
        self.part, self.way = part, way
        self._traces, self._holder = traces, holder

    def __call__(self, *values: Any) -> Any:
        with self._trace():
            return self.way.call(self.part, *values)

    async def acall(self, *values: Any) -> Any:
        """Call the part on this loop."""
        with self._trace():
            return await self.way.acall(self.part, *values)

    def _trace(self) -> Any:
        return nullcontext() if self._traces is None else self._traces.as_trace("query")


class FoundNodes:
    """A retriever's nodes in its place, for the retriever that asked it."""

    def __init__(self, nodes: list[Any]) -> None:
        self._nodes = nodes

    def retrieve(self, query: QueryBundle) -> list[Any]:
        """Return the nodes."""
        return self._nodes

    async def aretrieve(self, query: QueryBundle) -> list[Any]:
        """Return the nodes."""
        return self._nodes


def _gathering(held: str) -> Way:
    """Return how a retriever makes its result of the nodes that others have found.

    It is the retriever's own code, in a copy that holds the nodes in place of the others: the
    events are its own, too.
    """

    def of(part: Any, found: tuple[list[Any], ...]) -> Any:
        again = copy.copy(part)
        setattr(again, held, [FoundNodes(nodes) for nodes in found])
        return again

    return Way(
        lambda part, query, *found: of(part, found).retrieve(query),
        lambda part, query, *found: of(part, found).aretrieve(query),
    )


def _transforming(metadata: dict[str, Any] | None) -> Way:
    async def on_loop(part: BaseQueryTransform, query: QueryBundle) -> QueryBundle:
        return part.run(query, metadata=metadata)  # has no form for loops

    return Way(lambda part, query: part.run(query, metadata=metadata), on_loop)


def graph_of(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a program as a graph of the input ``input``, a text or a ``QueryBundle``.

    Args:
        program: a query engine or a retriever.
        name: names the program, for what the scheduler learns of it.
        holder: what must live as long as the graph.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    return _Translation(program, name, holder).graph()


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
    """Return what a request brings along as the query that all parts share.

    Raises:
        ConfigError: if it is neither a text nor a query.
    """
    query = checked_query(given)
    return QueryBundle(query) if isinstance(query, str) else query


class _Translation:
    """The making of one program's graph."""

    def __init__(self, program: Any, name: str, holder: object) -> None:
        self._program, self._name, self._holder = program, name, holder
        self._builder = PlanBuilder(RAGraph(INPUT))
        #: the manager of the outermost engine: LlamaIndex has one trace of a query, which it begins
        self._traces: CallbackManager | None = None

    def graph(self) -> RAGraph:
        program = self._program
        is_engine = isinstance(program, BaseQueryEngine)
        is_alone = not is_engine and _held_in_order(program) is None
        query = self._builder.add("query", checked_query if is_alone else as_query, INPUT)
        if is_engine:
            self._traces = program.callback_manager
            return self._builder.end(self._engine(program, query, "program"))
        return self._builder.end(self._retriever(program, query, "program", "retriever"))

    def _engine(self, engine: Any, query: str, path: str) -> str:
        if _runs_as(engine, TransformQueryEngine, _ENGINES[TransformQueryEngine]):
            transform = _of_kind(engine._query_transform, BaseQueryTransform, f"{path}.transform")
            way = _transforming(engine._transform_metadata)
            changed = self._call("transform", transform, way, query)
            return self._engine(engine._query_engine, changed, f"{path}.engine")
        if not _runs_as(engine, RetrieverQueryEngine, _ENGINES[RetrieverQueryEngine]):
            raise _not_declared(engine, path, ", ".join(cls.__name__ for cls in _ENGINES))
        nodes = self._retriever(engine._retriever, query, f"{path}.retriever", "retriever")
        for place, part in enumerate(engine._node_postprocessors):
            _of_kind(part, BaseNodePostprocessor, f"{path}.postprocessors.{place}")
            nodes = self._call("postprocessor", part, POSTPROCESS, query, nodes)
        path = f"{path}.synthesizer"
        synthesizer = _of_kind(engine._response_synthesizer, BaseSynthesizer, path)
        if synthesizer._streaming:
            raise _not_declared(
                synthesizer,
                path,
                "a synthesizer that does not stream",
                found="streaming=True",
            )
        return self._call("synthesizer", synthesizer, SYNTHESIZE, query, nodes)

    def _retriever(
        self, retriever: Any, query: str, path: str, name: str, after: tuple[str, ...] = ()
    ) -> str:
        _of_kind(retriever, BaseRetriever, path)
        held = _held_in_order(retriever)
        if held is None:
            return self._call(name, retriever, RETRIEVE, query, after=after)
        found: list[str] = []
        for place, part in enumerate(getattr(retriever, held)):
            before = (found[-1],) if found else after
            found.append(self._retriever(part, query, f"{path}.{place}", f"{name}.{place}", before))
        return self._call(name, retriever, _gathering(held), query, *found, after=after)

    def _call(
        self, name: str, part: Any, way: Way, *inputs: str, after: tuple[str, ...] = ()
    ) -> str:
        call = ComponentCall(part, way, self._traces, self._name, self._holder)
        return self._builder.add(name, call, *inputs, after=after)


def _held_in_order(retriever: Any) -> str | None:
    """Return the attribute with the retrievers that one asks in order; None if it is a leaf.

    With ``use_async`` they run side by side on one loop, which only the retriever itself does.
    """
    if _runs_as(retriever, PGRetriever, (*_RETRIEVING, "_deduplicate")):
        return None if retriever.use_async else "sub_retrievers"
    fusing = (*_RETRIEVING, "_run_sync_queries", "_run_async_queries")
    if _runs_as(retriever, QueryFusionRetriever, fusing):
        # With more queries a model writes them, and how many there are is known only then.
        return None if retriever.use_async or retriever.num_queries > 1 else "_retrievers"
    return None


def _runs_as(obj: Any, cls: type[Any], methods: tuple[str, ...]) -> bool:
    """Tell whether an object runs its parts exactly as ``cls`` does."""
    return isinstance(obj, cls) and all(
        getattr_static(type(obj), name) is getattr_static(cls, name) and name not in vars(obj)
        for name in methods
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
