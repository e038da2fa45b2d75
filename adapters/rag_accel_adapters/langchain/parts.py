"""A LangChain program as the parts that a graph of it is made of.

Sequences, parallels, assigns and bindings around them are taken apart; prompts, models, parsers,
retrievers, passthroughs, picks and functions stay whole, and so do branches, routers, fallbacks,
retries and tools, in which LangChain or user code decides what runs. Anything else is refused by
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.passthrough import RunnableAssign
from langchain_core.runnables.retry import RunnableRetry
from langchain_core.runnables.router import RouterRunnable
from langchain_core.tools import BaseTool

from rag_accel.errors import TranslationError

#: What a class has to inherit unchanged to be taken apart: what runs its children, and how.
_RUNNING = ("invoke", "ainvoke")
_BINDING = (*_RUNNING, "_merge_configs")

_WHOLE: tuple[tuple[type, str], ...] = (
    (BasePromptTemplate, "prompt"),
    (BaseLanguageModel, "model"),
    (BaseLLMOutputParser, "parser"),
    (BaseRetriever, "retriever"),
    (BaseTool, "tool"),
    (RunnablePassthrough, "passthrough"),
    (RunnablePick, "pick"),
    (RunnableLambda, "function"),
    (RunnableBranch, "branch"),
    (RouterRunnable, "router"),
    (RunnableWithFallbacks, "fallbacks"),
    (RunnableRetry, "retry"),
)
_COMPOSITE: tuple[tuple[type, str], ...] = (
    (RunnableSequence, "sequence"),
    (RunnableAssign, "assign"),
    (RunnableParallel, "parallel"),
)


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """One part of a program at one place.

    Args:
        path: the place, for people.
        kind: what it is.
        runnable: the framework's own object: what is invoked, or the composite taken apart.
        bindings: bindings around a composite, outermost first.
        children: in order; an assign has one, its mapper.
        key: its key in the parallel around it, if that is a parallel.
        tag: how its callback run is marked by its parent.
        takes_kwargs: whether it gets the keyword arguments its parent was called with.
    """

    path: str
    kind: str
    runnable: Runnable[Any, Any]
    bindings: tuple[RunnableBindingBase[Any, Any], ...] = ()
    children: tuple[ProgramPart, ...] = ()
    key: str | None = None
    tag: str | None = None
    takes_kwargs: bool = True

    def walk(self) -> Iterator[ProgramPart]:
        """Yield this part and all inside, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def width(self) -> int:
        """Return the most branches of any parallel inside, 0 without a parallel."""
        return max(
            (len(part.children) for part in self.walk() if part.kind == "parallel"), default=0
        )


def parts_of(program: Any) -> ProgramPart:
    """Return a program taken apart.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    return _part(program, "program")


def _part(obj: Any, path: str, **place: Any) -> ProgramPart:
    bindings: list[RunnableBindingBase[Any, Any]] = []
    inner = obj
    while _is(inner, RunnableBindingBase, _BINDING):
        bindings.append(inner)
        inner = inner.bound
    kind = next((kind for cls, kind in _COMPOSITE if _is(inner, cls)), None)
    if kind is None or (kind == "parallel" and not inner.steps__):
        # Without branches a parallel is called as it is, and gives an empty dict.
        return ProgramPart(path, kind or _whole_kind(inner, path), obj, **place)
    children = tuple(_children(kind, inner, path))
    part = ProgramPart(path, kind, inner, tuple(bindings), children, **place)
    _check_bindings(part)
    return part


def _is(obj: Any, cls: type, methods: tuple[str, ...] = _RUNNING) -> bool:
    """Tell whether an object runs exactly as ``cls`` does; generic aliases are subclasses."""
    return isinstance(obj, cls) and all(
        getattr(type(obj), name) is getattr(cls, name) for name in methods
    )


def _children(kind: str, obj: Any, path: str) -> Iterator[ProgramPart]:
    if kind == "assign":
        yield _part(obj.mapper, path)
    elif kind == "parallel":
        for key, step in obj.steps__.items():
            yield _part(step, f"{path}.{key}", key=key, tag=f"map:key:{key}", takes_kwargs=False)
    else:
        for place, step in enumerate(obj.steps):
            tag = f"seq:step:{place + 1}"
            yield _part(step, f"{path}.{place}", tag=tag, takes_kwargs=place == 0)


def _whole_kind(obj: Any, path: str) -> str:
    for cls, kind in _WHOLE:
        if isinstance(obj, cls):
            return kind
    names = ", ".join(cls.__name__ for cls, _ in (*_WHOLE, *_COMPOSITE))
    raise TranslationError(
        "a part of the program is not declared",
        where=path,
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid=f"{names}, and bindings of these, none of them accelerated",
        hint="accelerate(...) runs any program",
    )


def _check_bindings(part: ProgramPart) -> None:
    """Refuse what a graph without runs of composites has no place for."""
    for binding in part.bindings:
        limit = binding.config.get("max_concurrency")
        if limit and limit < part.width:
            raise _refused(part, f"max_concurrency={limit}", f"from {part.width}, its branches")
        if getattr(binding, "config_factories", None):
            raise _refused(part, "with_listeners", "listeners of prompts, models and retrievers")


def _refused(part: ProgramPart, found: str, valid: str) -> TranslationError:
    return TranslationError(
        f"a {part.kind} is bound to what a graph of it cannot do",
        where=part.path,
        found=found,
        valid=valid,
        hint="accelerate(...) runs any program",
    )
