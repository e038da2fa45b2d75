"""The leaf methods of a framework's classes.

Only these are ever replaced: in a subclass made for one accelerated object, or in their classes
while a program needs it. What replaces them is made in ``wrappers``. An integration describes its
framework once, as a ``Framework``; nothing else here knows any.
"""

from __future__ import annotations

import functools
from abc import get_cache_token
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import PrimitiveKind
from rag_accel.leaves.identity import RequestIdentity
from rag_accel.leaves.retrieved_documents import ReadDocuments
from rag_accel.scheduler.messages import EngineName
from rag_accel.system.methods import plain_class, plain_method, undecorated, unpatched
from rag_accel.system.weak_maps import ByClass

Method = Callable[..., Any]
Flavour = Literal[
    "plain",
    "coroutine",
    "generator",
    "async_generator",
    "stream",
    "async_stream",
    "composite",
]

NO_ENGINE = "no engine of this library computes what this class does"
#: of a leaf that holds others, as a retriever holds its store
AROUND_PARTS = f"{NO_ENGINE} around the parts that it holds"

#: What a class sets that brings its work to the scheduler itself.
SCHEDULED = "__rag_accel_scheduled__"
#: Where an accelerated object's class has the accelerator it was given.
OWN = "__rag_accel_own__"


@dataclass(frozen=True, slots=True)
class LeafMethod:
    """One leaf method.

    Args:
        name: the method's name.
        kind: what the scheduler takes it for.
        flavour: how it is called; ``stream`` is a plain method that returns an iterator and
            ``async_stream`` a coroutine that returns an async one, whose items are part of the
            call; ``composite`` does no work but has others do it.
        default: the class whose version does no work of its own.
        sync: for an async method, the method that this default runs in an executor.
        owned: returns the scheduled version that lets an owned engine compute where it can, given
            the method, this row and the version for objects which no engine runs.
        within: tells of a class whether ``owned`` is to see calls that are part of another leaf,
            too; it then tells them apart itself.
        is_plain_within: tells of an object and a run whether ``owned`` would only call
            the method where the call is part of another leaf, which then is done at once.
        finds_documents: whether a search's results are documents, which a run remembers for the
            prompts that are made of them.
    """

    name: str
    kind: PrimitiveKind
    flavour: Flavour = "plain"
    default: type | None = None
    sync: str | None = None
    owned: Callable[[Method, LeafMethod, Method], Method] | None = None
    within: Callable[[type], bool] = lambda cls: False
    is_plain_within: Callable[[Any, RequestIdentity], bool] = lambda obj, identity: False
    finds_documents: bool = True


def leaf_pair(
    name: str,
    kind: PrimitiveKind,
    default: type,
    async_name: str | None = None,
    owned: Callable[[Method, LeafMethod, Method], Method] | None = None,
) -> list[LeafMethod]:
    """Return a method and its async form, whose default runs the other in an executor."""
    other = async_name or f"a{name}"
    return [
        LeafMethod(name, kind, owned=owned),
        LeafMethod(other, kind, "coroutine", default, sync=name, owned=owned),
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Framework:
    """The leaf classes and methods of one framework.

    Args:
        name: what users call it.
        leaves: the leaf methods of each kind of object; the first base class that fits counts.
        parts: what an object that only has others do the work holds, by base class. A class that
            may well call what it holds past the methods known here has no row.
        inner: what is part of a leaf of this kind when it is called inside of one.
        entries: public methods, by base class, which a class may write itself and then need not
            pass its leaf methods: a plain one and a coroutine.
        held_by: yields the leaves that an object holds, itself among them perhaps.
        walk: yields the parts of a program, each with its position, the program first; None for the
            program and what it holds.
        reads: returns the options of an accelerator that a part of a program reads.
        to_sync: returns an argument of an async method as its sync form takes it.
        is_composite_call: tells whether a method makes calls that do not need each other.
        spread: returns such a method as it is to run here.
        may_be_owned: tells whether an owned engine may run objects of a class.
        documents: yields the id and the text of each document in what a search or a reranking
            returned.
        question: returns what a search or a reranking is asked, if that is in an argument.
        why_not: returns why no engine of an accelerator runs a leaf, and what would change that;
            empty where one does. None stands for an accelerator that is not made yet.
    """

    name: str
    leaves: Mapping[type, Sequence[LeafMethod]]
    parts: Mapping[type, tuple[type, ...]] = field(default_factory=dict[type, tuple[type, ...]])
    inner: Mapping[PrimitiveKind, tuple[type, ...]] = field(
        default_factory=dict[PrimitiveKind, tuple[type, ...]]
    )
    entries: Mapping[type, tuple[str, str]] = field(default_factory=dict[type, tuple[str, str]])
    held_by: Callable[[Any], Iterator[Any]] = lambda obj: iter(())
    walk: Callable[[Any], Iterator[tuple[str, Any]]] | None = None
    reads: Callable[[Any], frozenset[str]] = lambda part: frozenset()
    to_sync: Callable[[Any], Any] = lambda value: value
    is_composite_call: Callable[[Method | None], bool] = lambda method: False
    spread: Callable[[Method], Method] = lambda method: method
    may_be_owned: Callable[[type], bool] = lambda cls: False
    documents: ReadDocuments = lambda result: ()
    question: Callable[[Any], str | None] = lambda value: None
    why_not: Callable[[Any, Accelerator | None], str] = lambda leaf, accelerator: NO_ENGINE

    def parts_of(self, program: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts of a program, each with its position, the program first."""
        if self.walk is not None:
            yield from self.walk(program)
            return
        yield "program", program
        held = leaf_class(plain_class(type(program))).framework.held_by(program)
        for number, leaf in enumerate(leaf for leaf in held if leaf is not program):
            yield f"program.{number}", leaf

    def working_methods(self) -> Iterator[tuple[type, str]]:
        """Yield the leaf methods that do work themselves, each with its base class."""
        for base, leaves in self.leaves.items():
            # A composite's method is one of few classes; where it is gone, nothing is missed.
            yield from ((base, leaf.name) for leaf in leaves if leaf.flavour != "composite")


@dataclass(frozen=True, slots=True)
class LeafClass:
    """The leaf methods and flags of one class, looked up by every call.

    Args:
        framework: whose it is, if it has leaf methods.
        base: the framework's base class whose leaf methods it has, if any.
        engine: the borrowed engine's name for its objects.
        parts: what an object of it may hold that then does the work.
        may_be_owned: whether an owned engine may run its objects.
    """

    framework: Framework
    base: type | None
    engine: EngineName
    parts: tuple[type, ...]
    may_be_owned: bool


_NOBODYS = Framework("none", {})

#: Whose leaves are intercepted; ``patches.intercept`` adds to them.
frameworks: list[Framework] = []


def add_framework(framework: Framework) -> None:
    """Know a framework's leaves from now on."""
    if framework not in frameworks:
        frameworks.append(framework)
        leaf_class.clear()


def _look_at(cls: type) -> LeafClass:
    plain = plain_class(cls)
    engine = EngineName(f"{plain.__module__}.{plain.__qualname__}")
    for framework in frameworks:
        for base in framework.leaves:
            if issubclass(cls, base):
                parts = framework.parts.get(base, ())
                return LeafClass(framework, base, engine, parts, framework.may_be_owned(plain))
    return LeafClass(_NOBODYS, None, engine, (), False)


#: returns what is known of a class
leaf_class = ByClass(_look_at)


def leaf_base(cls: type) -> type | None:
    """Return the base class whose leaf methods ``cls`` has, if any."""
    return leaf_class(cls).base


def leaf_methods(cls: type) -> Sequence[LeafMethod]:
    """Return the leaf methods that objects of a class have."""
    known = leaf_class(cls)
    return known.framework.leaves[known.base] if known.base is not None else ()


def is_scheduled(cls: type) -> bool:
    """Tell whether objects of this class schedule their work themselves."""
    return bool(getattr(cls, "__rag_accel__", False) or getattr(cls, SCHEDULED, False))


def why_not(leaf: Any, accelerator: Accelerator | None) -> str:
    """Return why no engine runs a leaf, and what would change that; empty where one does."""
    if is_scheduled(plain_class(type(leaf))):
        return ""
    try:
        return leaf_class(type(leaf)).framework.why_not(leaf, accelerator)
    except Exception as error:  # of the program's own attributes, which are its business
        return f"what it holds cannot be looked at: {error!r}"


def is_composite(obj: Any) -> bool:
    """Tell whether an object only has others of its kind, or models, do the work.

    Those are the leaves then.
    """
    parts = leaf_class(type(obj)).parts
    return bool(parts) and holds(obj, parts)


def is_working_leaf(obj: Any) -> bool:
    """Tell whether an object does work itself rather than having others do it."""
    methods = leaf_methods(plain_class(type(obj)))
    return any(leaf.flavour != "composite" for leaf in methods) and not is_composite(obj)


#: no parts
_SETTINGS = frozenset({type(None), bool, int, float, str, dict})


#: members of a list that are looked at: a pipeline has few, a store's documents are many
_FEW = 16


def holds(obj: Any, parts: tuple[type, ...]) -> bool:
    """Tell whether an attribute of ``obj`` is one of these, or a sequence with one of them."""
    known = _parts_known(parts, get_cache_token())
    for value in vars(obj).values():
        cls = type(value)
        if cls in _SETTINGS:
            continue
        is_part = known.get(id(cls))
        if is_part is None:
            is_part = known(cls)
        if is_part or (value.__class__ is not cls and isinstance(value, parts)):  # a proxy
            return True
        if isinstance(value, list | tuple) and any(
            known(type(part)) or (part.__class__ is not type(part) and isinstance(part, parts))
            for part in value[:_FEW]
        ):
            return True
    return False


@functools.lru_cache(maxsize=64)
def _parts_known(parts: tuple[type, ...], token: int) -> ByClass[bool]:
    """Return what tells of a class whether it is of one of these, as of now.

    The token changes where a class is registered as one that it does not derive from.
    """
    return ByClass(lambda cls: issubclass(cls, parts))


def is_default(cls: type, leaf: LeafMethod) -> bool:
    """Tell whether ``cls`` inherits a version of the method that does no work of its own.

    Of a composite's method, whether it is one that nothing is known of.
    """
    if leaf.flavour == "composite":
        return not leaf_class(cls).framework.is_composite_call(plain_method(cls, leaf.name))
    if leaf.default is None:
        return False
    here, default = plain_method(cls, leaf.name), plain_method(leaf.default, leaf.name)
    # A LangChain retriever without ``run_manager`` gets a default when its class is made.
    made = f"{leaf.default.__qualname__}.__init_subclass__.<locals>.{leaf.name}"
    return undecorated(here) is undecorated(default) or getattr(here, "__qualname__", "") == made


def wrapped_in(cls: type, name: str) -> Method | None:
    """Return the function under our wrapper in this very class; ``None`` without one."""
    method = cls.__dict__.get(name)
    original = unpatched(method)
    return None if original is method else original
