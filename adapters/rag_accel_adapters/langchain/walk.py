"""The inside of LangChain programs: which objects do the work, and at which positions.

Static discovery serves planning and ``explain()``. What it cannot see, such as a model that a
function makes, is scheduled all the same.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEachBase
from langchain_core.runnables.passthrough import RunnableAssign, RunnablePassthrough
from langchain_core.runnables.router import RouterRunnable
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import VectorStore
from pydantic import BaseModel

from rag_accel.system.classes import NamedClasses
from rag_accel_adapters.langchain.callables import held_by, wanted_in

Parts = Iterator[tuple[str, Any]]


def is_graph(obj: Any) -> bool:
    """Tell whether an object is a compiled LangGraph."""
    return _is_a(obj, "langgraph.pregel", "Pregel")


def parts_of(obj: Any) -> Iterable[tuple[str, Any]] | None:
    """Return what an object of LangGraph's is made of, with names; None of any other object.

    A name is empty where the owner of the graph gave none.
    """
    if is_graph(obj):
        return _of_graph(obj)
    if is_tool_node(obj):
        return [("", tool) for tool in obj.tools_by_name.values()]
    if _is_a(obj, "langgraph._internal._runnable", "RunnableCallable"):
        return _of_callable(obj)
    if _is_a(obj, "langgraph.pregel._read", "PregelNode"):
        return [("", obj.bound)]
    return None


def is_tool_node(obj: Any) -> bool:
    """Tell whether an object is LangGraph's node that calls tools."""
    return _is_a(obj, "langgraph.prebuilt.tool_node", "ToolNode")


def _is_a(obj: Any, module: str, name: str) -> bool:
    # Private modules may move: then the object is walked as one of an unknown framework's.
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(obj, cls)


def _of_graph(graph: Any) -> Parts:
    builder = getattr(graph, "builder", None)
    if builder is None:  # a function of the functional API
        nodes = {name: node.bound for name, node in graph.nodes.items()}
    else:
        nodes = {name: spec.runnable for name, spec in builder.nodes.items()}
        yield from _conditions(builder.branches)
    yield from ((name, node) for name, node in nodes.items() if not name.startswith("__"))
    for name, channel in graph.channels.items():
        reducer = getattr(channel, "operator", None)
        if reducer is not None:
            yield name, reducer
    embeddings = getattr(graph.store, "embeddings", None)
    if embeddings is not None:
        yield "store", embeddings


def _conditions(branches: Any) -> Parts:
    for node, conditions in branches.items():
        for name, condition in conditions.items():
            yield (name if node.startswith("__") else f"{node}.{name}"), condition.path


def _of_callable(obj: Any) -> Parts:
    for function in (obj.func, obj.afunc):
        if function is not None:
            yield "", function


class QueriedGraph(
    metaclass=NamedClasses,
    names=(
        "langchain_neo4j.graphs.neo4j_graph.Neo4jGraph",
        "langchain_community.graphs.graph_store.GraphStore",
        "langchain_community.graphs.networkx_graph.NetworkxEntityGraph",
    ),
):
    """The graph that a chain asks, by a query of its database or by an entity's name."""


LEAF_BASES = (
    BaseLanguageModel,
    BaseRetriever,
    Embeddings,
    VectorStore,
    BaseDocumentCompressor,
    QueriedGraph,
)
MAX_DEPTH = 64

_FRAMEWORKS = ("langchain", "langchain_classic", "langchain_core", "langgraph", "rag_accel")


@dataclass(frozen=True, slots=True)
class Found:
    """One object at one position of a program."""

    path: str
    obj: Any

    @property
    def is_leaf(self) -> bool:
        """Tell whether the object does work itself rather than composing others."""
        return isinstance(self.obj, LEAF_BASES)


def walk(obj: Any, path: str = "program") -> Iterator[Found]:
    """Yield every object of a program with its position, parents before children.

    An object that stands at several positions is yielded at each; its inside only once.
    """
    yield from _walk(obj, path, set(), 0)


def leaves(obj: Any) -> list[Found]:
    """Return the objects of a program that do work."""
    return [found for found in walk(obj) if found.is_leaf]


def _walk(obj: Any, path: str, seen: set[int], depth: int) -> Iterator[Found]:
    if depth > MAX_DEPTH or not (_is_part(obj) or callable(obj)):
        return
    yield Found(path, obj)
    if id(obj) in seen:
        return
    seen.add(id(obj))
    for name, child in _children(obj):
        yield from _walk(child, f"{path}.{name}" if name else path, seen, depth + 1)


def _is_part(obj: Any) -> bool:
    try:
        return isinstance(obj, (Runnable, *LEAF_BASES))
    except Exception:  # a proxy that stands for nothing yet does not even say its class
        return False


def _children(obj: Any) -> Iterable[tuple[str, Any]]:
    parts = parts_of(obj)
    if parts is not None:
        return parts
    # isinstance only: a binding forwards unknown attributes to what it binds, so asking for an
    # attribute would find the same children twice.
    for kind, children in _CHILDREN:
        if isinstance(obj, kind):
            return children(obj)
    if isinstance(obj, BaseModel):
        return _field_values(obj)
    if _is_part(obj):
        return _attribute_values(obj)
    found = held_by(obj, _is_part)
    return found if is_users(obj) else (("", child) for _, child in found)


def is_users(function: Any) -> bool:
    """Tell whether a callable is the user's own rather than a framework's."""
    inner = function.func if isinstance(function, functools.partial) else function
    module = str(getattr(inner, "__module__", ""))
    return module.partition(".")[0] not in _FRAMEWORKS


def _sequence(obj: RunnableSequence[Any, Any]) -> Iterator[tuple[str, Any]]:
    for index, step in enumerate(obj.steps):
        yield str(index), step


def _branches(obj: RunnableBranch[Any, Any]) -> Iterator[tuple[str, Any]]:
    for index, (condition, body) in enumerate(obj.branches):
        yield f"if{index}", condition
        yield f"then{index}", body
    yield "default", obj.default


def _fallbacks(obj: RunnableWithFallbacks[Any, Any]) -> Iterator[tuple[str, Any]]:
    yield "runnable", obj.runnable
    for index, fallback in enumerate(obj.fallbacks):
        yield f"fallback{index}", fallback


def _functions(
    obj: RunnableLambda[Any, Any] | RunnablePassthrough[Any],
) -> Iterator[tuple[str, Any]]:
    for name in ("func", "afunc"):
        function = getattr(obj, name, None)
        if function is not None:
            yield "", function


def _tool(obj: BaseTool) -> Iterator[tuple[str, Any]]:
    for function in (getattr(obj, "func", None), getattr(obj, "coroutine", None)):
        if function is not None:
            yield obj.name, function
    yield from ((f"{obj.name}.{name}", value) for name, value in _field_values(obj))
    for name in ("_run", "_arun"):  # of a class of the user's own
        if is_users(getattr(type(obj), name)):
            yield obj.name, getattr(obj, name)


def _field_values(obj: BaseModel) -> Iterator[tuple[str, Any]]:
    values = {name: getattr(obj, name, None) for name in type(obj).model_fields}
    yield from wanted_in({**values, **(obj.__pydantic_private__ or {})}, _is_part)


def _attribute_values(obj: Any) -> Iterator[tuple[str, Any]]:
    values = dict(getattr(obj, "__dict__", {}))
    if isinstance(obj, VectorStore):
        made = obj.embeddings
        if all(value is not made for value in values.values()):
            values["embeddings"] = made
    yield from wanted_in(values, _is_part)
    if isinstance(obj, Runnable):  # of a framework built on LangChain: its functions matter
        yield from ((name, value) for name, value in values.items() if is_function(value))


def is_function(value: Any) -> bool:
    """Tell whether something is a function, a method or a partial of one."""
    return inspect.isroutine(value) or isinstance(value, functools.partial)


_CHILDREN: tuple[
    tuple[type | tuple[type, ...], Callable[[Any], Iterable[tuple[str, Any]]]], ...
] = (
    (BasePromptTemplate, lambda obj: ()),
    (RunnableSequence, _sequence),
    (RunnableParallel, lambda obj: obj.steps__.items()),
    (RunnableAssign, lambda obj: [("mapper", obj.mapper)]),
    (RunnableBranch, _branches),
    (RouterRunnable, lambda obj: obj.runnables.items()),
    (RunnableWithFallbacks, _fallbacks),
    ((RunnableBindingBase, RunnableEachBase), lambda obj: [("", obj.bound)]),
    ((RunnableLambda, RunnablePassthrough), _functions),
    (BaseTool, _tool),
)
