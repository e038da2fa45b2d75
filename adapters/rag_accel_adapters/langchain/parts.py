"""A LangChain program as the parts that a translation understands.

Sequences, parallels, assigns and bindings around them are taken apart; prompts, models, parsers,
retrievers, passthroughs, picks and functions stay whole, and so do branches, fallbacks and retries,
in which LangChain decides what runs. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel, BaseLanguageModel
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

from rag_accel.errors import TranslationError

Composite = Literal["sequence", "parallel", "assign"]
Whole = Literal[
    "prompt",
    "chat-model",
    "llm",
    "parser",
    "retriever",
    "passthrough",
    "pick",
    "function",
    "branch",
    "fallbacks",
    "retry",
]

VALID = (
    "prompts, chat models, LLMs, output parsers, retrievers, RunnablePassthrough, RunnableAssign, "
    "RunnableParallel, RunnablePick, RunnableLambda, RunnableSequence, RunnableBranch, "
    "RunnableWithFallbacks, RunnableRetry, and bindings of these"
)

#: What a class has to inherit unchanged to be taken apart: what runs its children, and how.
_RUNNING = ("invoke", "ainvoke", "batch", "abatch")
_BINDING = (*_RUNNING, "_merge_configs")


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """One part of a program at one place.

    Args:
        path: the place, for people.
        kind: what it is.
        runnable: the framework's own object: what is invoked, or the composite taken apart.
        bindings: bindings around a composite, outermost first.
        keys: the names of a composite's children: step numbers, or keys.
        children: in order; an assign has one, its mapper.
        tag: how its callback run is marked by its parent.
        takes_kwargs: whether it gets the keyword arguments its parent was called with.
        is_light: whether it only hands on, or picks from, what it is given.
        is_opaque: whether it is not looked into: code of the user's, or a part in which LangChain
            decides what runs.
        asides: branches of a parallel that are done before its one child, by key.
    """

    path: str
    kind: Composite | Whole
    runnable: Runnable[Any, Any]
    bindings: tuple[RunnableBindingBase[Any, Any], ...] = ()
    keys: tuple[str, ...] = ()
    children: tuple[ProgramPart, ...] = ()
    tag: str | None = None
    takes_kwargs: bool = True
    is_light: bool = False
    is_opaque: bool = False
    asides: tuple[tuple[str, ProgramPart], ...] = ()

    @property
    def is_composite(self) -> bool:
        """Tell whether it is made of others."""
        return bool(self.children)

    @property
    def splits(self) -> bool:
        """Tell whether it has branches that may run side by side."""
        return self.kind == "parallel" and len(self.children) > 1

    def walk(self) -> Iterator[ProgramPart]:
        """Yield this part and all inside, parents first."""
        yield self
        for child in (*self.children, *(aside for _, aside in self.asides)):
            yield from child.walk()

    def with_asides(self) -> ProgramPart:
        """Return this with light branches done aside where at most one branch is none.

        They are over sooner than another thread or task could begin with them.
        """
        children = tuple(child.with_asides() for child in self.children)
        heavy = [place for place, child in enumerate(children) if not child.is_light]
        if not self.splits or len(heavy) > 1:
            return replace(self, children=children)
        main = heavy[0] if heavy else len(children) - 1
        branches = tuple(zip(self.keys, children, strict=True))
        asides = branches[:main] + branches[main + 1 :]
        return replace(self, children=(children[main],), asides=asides)


def parts_of(program: Runnable[Any, Any]) -> ProgramPart:
    """Return a program taken apart.

    Raises:
        TranslationError: naming the first part that is not understood, and its place.
    """
    return _part(program, "program", None, True)


def _part(obj: Any, path: str, tag: str | None, takes_kwargs: bool) -> ProgramPart:
    bindings, inner = _unbound(obj)
    kind = _composite_kind(inner)
    if kind is None:
        whole = _whole_kind(inner, path)
        return ProgramPart(
            path,
            whole,
            obj,
            tag=tag,
            takes_kwargs=takes_kwargs,
            is_light=whole == "pick" or _only_hands_on(inner),
            is_opaque=whole in _STEERED or _is_users_code(inner),
        )
    keys, children = _CHILDREN[kind](inner, path)
    part = ProgramPart(path, kind, inner, bindings, keys, children, tag, takes_kwargs)
    _check_bindings(part)
    return part


def _unbound(obj: Any) -> tuple[tuple[RunnableBindingBase[Any, Any], ...], Any]:
    bindings: list[RunnableBindingBase[Any, Any]] = []
    while _is(obj, RunnableBindingBase, _BINDING):
        bindings.append(obj)
        obj = obj.bound
    return tuple(bindings), obj


def _is(obj: Any, cls: type, methods: tuple[str, ...] = _RUNNING) -> bool:
    """Tell whether an object runs exactly as ``cls`` does; generic aliases are subclasses."""
    return isinstance(obj, cls) and all(
        getattr(type(obj), name) is getattr(cls, name) for name in methods
    )


def _composite_kind(obj: Any) -> Composite | None:
    if _is(obj, RunnableSequence):
        return "sequence"
    if _is(obj, RunnableAssign):
        return "assign"
    return "parallel" if _is(obj, RunnableParallel) and obj.steps__ else None


def _sequence(obj: Any, path: str) -> tuple[tuple[str, ...], tuple[ProgramPart, ...]]:
    keys = tuple(str(index) for index in range(len(obj.steps)))
    children = tuple(
        _part(step, f"{path}.{index}", f"seq:step:{index + 1}", index == 0)
        for index, step in enumerate(obj.steps)
    )
    return keys, children


def _parallel(obj: Any, path: str) -> tuple[tuple[str, ...], tuple[ProgramPart, ...]]:
    children = tuple(
        _part(step, f"{path}.{key}", f"map:key:{key}", False) for key, step in obj.steps__.items()
    )
    return tuple(obj.steps__), children


def _assign(obj: Any, path: str) -> tuple[tuple[str, ...], tuple[ProgramPart, ...]]:
    return ("mapper",), (_part(obj.mapper, path, None, True),)


_CHILDREN = {"sequence": _sequence, "parallel": _parallel, "assign": _assign}

_WHOLE: tuple[tuple[type, Whole], ...] = (
    (BasePromptTemplate, "prompt"),
    (BaseChatModel, "chat-model"),
    (BaseLanguageModel, "llm"),
    (BaseLLMOutputParser, "parser"),
    (BaseRetriever, "retriever"),
    (RunnablePassthrough, "passthrough"),
    (RunnablePick, "pick"),
    (RunnableLambda, "function"),
    (RunnableBranch, "branch"),
    (RunnableWithFallbacks, "fallbacks"),
    (RunnableRetry, "retry"),
)
#: Which of the runnables inside these run, and how often, is found out by running them.
_STEERED = ("branch", "fallbacks", "retry")


def _whole_kind(obj: Any, path: str) -> Whole:
    for cls, kind in _WHOLE:
        if isinstance(obj, cls):
            return kind
    if _is(obj, RunnableParallel):  # one without branches: nothing to take apart
        return "passthrough"
    raise TranslationError(
        "a part of the program is not understood",
        where=path,
        found=f"{type(obj).__module__}.{type(obj).__qualname__}",
        valid=f'in mode="translate": {VALID}',
        hint='use mode="auto", which accelerates any program by interception',
    )


def _only_hands_on(obj: Any) -> bool:
    if isinstance(obj, RunnablePassthrough):
        return obj.func is None and obj.afunc is None
    functions = [getattr(obj, name) for name in ("func", "afunc") if hasattr(obj, name)]
    return bool(functions) and all(isinstance(function, itemgetter) for function in functions)


def _is_users_code(obj: Any) -> bool:
    if isinstance(obj, RunnablePassthrough):
        return not _only_hands_on(obj)
    return isinstance(obj, RunnableLambda)


def _splits_inside(part: ProgramPart) -> bool:
    return any(inner.splits for inner in part.with_asides().walk())


def _check_bindings(part: ProgramPart) -> None:
    """Refuse what would bound how many branches run at once below the caller's own bound."""
    limits = [binding.config.get("max_concurrency") for binding in part.bindings]
    if part.path != "program" and any(limits) and _splits_inside(part):
        raise TranslationError(
            "a part of the program sets max_concurrency for its branches",
            where=part.path,
            found=f"max_concurrency={next(filter(None, limits))}",
            valid='in mode="translate": max_concurrency in the config of the whole program',
            hint='use mode="auto", which accelerates any program by interception',
        )
