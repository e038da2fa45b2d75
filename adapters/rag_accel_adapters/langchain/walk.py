"""The inside of LangChain programs: which objects do the work, and at which positions.

Static discovery serves planning and ``explain()``. What it cannot see, such as a model that a
function makes, is scheduled all the same.
"""

from __future__ import annotations

import functools
import inspect
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

from rag_accel_adapters.langchain.callables import held_by, wanted_in
from rag_accel_adapters.langchain.langgraph_parts import parts_of
from rag_accel_adapters.langchain.queried_graphs import QueriedGraph

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
