"""Checks that classes and objects of a library are as its own modules wrote them.

A tracer, a gateway or a subclass may replace any method, of a class or of one object, at any time.
What it does may depend on the caller, so work of several callers is joined only where none did
but a known tracer, which a shared call passes in a context of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.system.classes import is_written_in
from rag_accel.system.methods import (
    cell_of_traced,
    module_of,
    plain_method,
    traced,
    undecorated,
    unpatched,
)

_code = attrgetter("__code__")
#: dunder attributes of a class that decide how its objects behave; others are bookkeeping
_DECISIVE = frozenset({"__call__", "__getattr__", "__getattribute__", "__init__", "__setattr__"})


@dataclass(frozen=True, slots=True)
class _ShippedClass:
    """The attributes of a class when it was found to be as shipped; the values are kept alive."""

    values: tuple[Any, ...]
    functions: tuple[FunctionType, ...]
    codes: list[CodeType]
    #: what the functions of decorators call, which is among ``functions``
    cells: tuple[CellType, ...]
    called: list[int]
    #: attributes that are functions, properties and the like
    names: frozenset[str]


_seen: WeakKeyDictionary[type, _ShippedClass] = WeakKeyDictionary()
_bases: WeakKeyDictionary[type, tuple[type, ...]] = WeakKeyDictionary()


def package_of(cls: type) -> str:
    """Return the name of the package that a class says it belongs to."""
    return cls.__module__.partition(".")[0]


def check_object(obj: Any, name: str) -> None:
    """Check that an object's class is as shipped, and nothing was replaced on the object.

    Args:
        name: of the setting or attribute that holds it.

    Raises:
        NotAdoptedError: something was; it says by which module.
    """
    names = getattr(obj, "__dict__", {}).keys()  # none with slots only
    for base in _library_bases(type(obj)):
        replaced = names & _as_shipped(base).names
        if replaced:
            raise NotAdoptedError(f"{name}: {base.__name__}.{min(replaced)} is replaced on it")


def check_class(cls: type, leaves: Sequence[str]) -> None:
    """Check that a class and those of its bases that a library brings are as shipped.

    Args:
        leaves: methods in whose place our work runs, in the tracers that stand around them.

    Raises:
        NotAdoptedError: one is not; it says by which module.
    """
    for base in _library_bases(cls):
        _as_shipped(base)
    for name in leaves:
        found = undecorated(plain_method(cls, name))
        if traced(found) is not None:
            raise NotAdoptedError(
                f"{cls.__name__}.{name} is traced by {module_of(found)} in a way that is not known",
                "another version of that",
            )


def check_function(function: Any, name: str) -> None:
    """Check that a function is one that a library's module defines at its top, perhaps traced.

    Raises:
        NotAdoptedError: it is not; it says by which module.
    """
    while (inner := traced(function)) is not None:
        function = inner
    if not _is_as_shipped(function) or function.__code__.co_qualname != function.__code__.co_name:
        raise NotAdoptedError(f"{name} is a function of {module_of(function)}")


#: Bases that are no part of a library's work.
_STANDARD = frozenset(
    {"abc", "builtins", "langchain_core", "llama_index_instrumentation", "pydantic", "typing"}
)


def _library_bases(cls: type) -> tuple[type, ...]:
    """Return a class and the bases that count; a class of no library fails when it is looked at."""
    bases = _bases.get(cls)
    if bases is None:
        bases = _bases[cls] = tuple(
            base for base in cls.__mro__ if base is cls or not _is_standard(base)
        )
    return bases


def _is_standard(base: type) -> bool:
    return package_of(base) in _STANDARD or base.__module__.startswith("llama_index.core.")


def _as_shipped(cls: type) -> _ShippedClass:
    values = tuple(vars(cls).values())
    seen = _seen.get(cls)
    # Identities, not equality: a proxy of a function equals it.
    if (
        seen is not None
        and len(values) == len(seen.values)
        and all(map(is_, values, seen.values))
        and list(map(_code, seen.functions)) == seen.codes
        and [id(_content(cell)) for cell in seen.cells] == seen.called
    ):
        return seen
    functions, names = list[FunctionType](), set[str]()
    for name in list(vars(cls)):
        found = _functions(cls, name)
        if found is None or not all(_is_of(function, cls) for function in found):
            raise NotAdoptedError(
                f"{cls.__name__}.{name} is a function of {_foreign_module(cls, name, found)},"
                " which may look at who calls"
            )
        functions += found
        # The value of a cached property stands on the object.
        if found and not isinstance(vars(cls)[name], functools.cached_property):
            names.add(name)
    codes = list(map(_code, functions))
    cells = tuple(cell for function in functions if (cell := _cell_around(function)) is not None)
    called = [id(_content(cell)) for cell in cells]
    _seen[cls] = _ShippedClass(values, tuple(functions), codes, cells, called, frozenset(names))
    return _seen[cls]


def _foreign_module(cls: type, name: str, found: Sequence[FunctionType] | None) -> str:
    foreign = [function for function in found or () if not _is_of(function, cls)]
    return module_of(foreign[0] if foreign else vars(cls)[name])


def _functions(cls: type, name: str) -> list[FunctionType] | None:
    """Return the functions behind an attribute of a class; ``None`` for what cannot be judged."""
    value = vars(cls)[name]
    if name.startswith("__") and name not in _DECISIVE:
        return []
    if name == "model_post_init" and _is_pydantics(value):  # put there for private attributes
        return []
    if isinstance(value, FunctionType):
        value = plain_method(cls, name)
    functions = list(_unwrapped(value))
    if all(type(function) is FunctionType for function in functions):
        return functions
    is_data = issubclass(type(value), type) or not (
        callable(value) or hasattr(type(value), "__get__")
    )
    return [] if is_data else None


def _is_pydantics(value: Any) -> bool:
    home = os.path.dirname(sys.modules["pydantic"].__file__ or "") + os.sep
    return type(value) is FunctionType and value.__code__.co_filename.startswith(home)


def _unwrapped(value: Any) -> Iterator[Any]:
    cls = type(value)  # a tracer's proxy says that it is of the class of what it stands for
    if issubclass(cls, staticmethod | classmethod):
        yield from _unwrapped(value.__func__)
    elif issubclass(cls, property):
        for one in (value.fget, value.fset, value.fdel):
            yield from _unwrapped(one) if one is not None else ()
    elif issubclass(cls, functools.cached_property):
        yield from _unwrapped(value.func)
    elif cls is FunctionType and (cell := _cell_around(value)) is not None:
        # What it calls, not what its ``__wrapped__`` says.
        yield value
        yield from _unwrapped(_content(cell))
    elif _is_decorated_as_shipped(value):
        yield from _unwrapped(value.__wrapped__)
    elif cls is MemberDescriptorType:  # of a slot
        return
    elif _is_as_shipped(getattr(cls, "__get__", None)):  # a descriptor of the library's own
        held = getattr(value, "__dict__", {}).values()
        yield from (one for one in held if isinstance(one, FunctionType))
    elif (inner := traced(value)) is not None:
        if cls is FunctionType:
            yield value
        yield from _unwrapped(unpatched(inner))  # which it may have been put around
    else:
        yield value


#: Functions of a library that it puts around methods of its own classes, and how they call those.
_AROUND = {
    "rate_limit_handler.<locals>.wrapper": "func",
    "trace_method.<locals>.decorator.<locals>.wrapper": "f",
    "validation_context.<locals>.decorator.<locals>.wrapper": "func",
    "validate_hf_hub_args.<locals>._inner_fn": "fn",
}


def _cell_around(function: FunctionType) -> CellType | None:
    """Return the cell in which a decorator's function keeps the one that it stands around."""
    code = function.__code__
    name = _AROUND.get(code.co_qualname, "func")
    if not _stands_for_another(code) or name not in code.co_freevars:
        return None
    return (function.__closure__ or ())[code.co_freevars.index(name)]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # somebody emptied it
        return None


def _stands_for_another(code: CodeType) -> bool:
    if code.co_filename == contextlib.__file__:
        return True
    return code.co_qualname in _AROUND and code.co_filename.startswith(_homes())


def _is_decorated_as_shipped(value: Any) -> bool:
    """Tell whether a library's own decorator, made by wrapt, stands around a function."""
    return _is_as_shipped(getattr(value, "_self_wrapper", None))


def _is_as_shipped(function: Any) -> bool:
    return type(function) is FunctionType and function.__code__.co_filename.startswith(_homes())


def _is_of(function: FunctionType, cls: type) -> bool:
    """Tell whether a function stands in a library's own file, in the class that has it.

    A known decorator's or tracer's need not: what it stands around is looked at, too.
    """
    code = function.__code__
    if _cell_around(function) is not None or traced(function) is not None:
        return True
    # A tracer may have put a base's method into the class.
    owners = tuple(f"{base.__qualname__}." for base in cls.__mro__)
    return code.co_filename.startswith(_homes()) and code.co_qualname.startswith(owners)


#: They sit in one another's classes and rename their modules, so any of their files will do.
_LIBRARIES = (
    "chromadb",
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "langchain_community",
    "langchain_huggingface",
    "langchain_ollama",
    "langchain_openai",
    "llama_index.embeddings.azure_openai",
    "llama_index.embeddings.ollama",
    "llama_index.embeddings.openai",
    "llama_index.embeddings.text_embeddings_inference",
    "llama_index.postprocessor.jinaai_rerank",
    "llama_index.postprocessor.tei_rerank",
    "llama_index.utils.huggingface",
    "llama_index_instrumentation",
    "neo4j_graphrag",
    "ollama",
    "openai",
    "overrides",
    "qdrant_client",
    "requests",
    "sqlalchemy",
)


def _homes() -> tuple[str, ...]:
    """Return the folders of the libraries that are imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return tuple(os.path.dirname(file) + os.sep for file in files if file is not None)


#: Of a class, each place where one of the methods may stand: the number of the base, the name, and
#: what was found there.
_Places = tuple[tuple[int, str, Any], ...]
_ABSENT = object()
#: returns a class's method as its program wrote it
PlainMethod = Callable[[type, str], Any]


class WrittenMethods:
    """Methods by which a class's objects do what an engine of ours computes in their place.

    A test, a tracer or a program may replace any of them, in a class or on an object, at any time.
    Then the object's own method is to run.

    Args:
        leaves: those that an engine's work stands for, in whatever decorators they are that bind
            by themselves or are a known tracer's: these stand around that work, too.
        inner: those that these call.
    """

    def __init__(self, leaves: Sequence[str], inner: Sequence[str] = ()) -> None:
        self._leaves = frozenset(leaves)
        self._names = (*leaves, *inner)
        self._seen: WeakKeyDictionary[type, _Places] = WeakKeyDictionary()

    def check(self, obj: Any, cls: type) -> None:
        """Check that nothing has replaced one of them, but tracers that stand around leaves.

        Raises:
            NotAdoptedError: something has.
        """
        if not self.are_plain(obj, cls):
            raise NotAdoptedError(f"a method of {cls.__name__} is replaced, or of the object")

    def are_plain(self, obj: Any, cls: type, method: PlainMethod = plain_method) -> bool:
        """Tell whether nothing has replaced one of them.

        Args:
            obj: the object.
            cls: its plain class.
            method: returns a class's method as its program wrote it.
        """
        if not vars(obj).keys().isdisjoint(self._names):
            return False
        seen = self._seen.get(cls)
        if seen is not None:
            bases = cls.__mro__
            for at, name, value in seen:
                if bases[at].__dict__.get(name, _ABSENT) is not value:
                    break
            else:
                return True
        return self._look(cls, method)

    def _look(self, cls: type, method: PlainMethod) -> bool:
        places: list[tuple[int, str, Any]] = []
        for name in self._names:
            for at, base in enumerate(cls.__mro__):
                value = vars(base).get(name, _ABSENT)
                places.append((at, name, value))
                if value is _ABSENT:
                    continue
                found = method(cls, name)
                if name in self._leaves:
                    found = _undecorated(found)
                if not _is_written(base, name, found):
                    return False
                break
        self._seen[cls] = tuple(places)
        return True


def _undecorated(method: Any) -> Any:
    while True:
        if isinstance(method, FunctionType) and type(method) is not FunctionType:
            method = getattr(method, "__wrapped__", None)
        elif cell_of_traced(method) is not None:
            method = unpatched(traced(method))  # which it may have been put around
        else:
            return method


def _is_written(cls: type, name: str, method: Any) -> bool:
    """Tell whether a class's method is the one that the class's module wrote."""
    module = sys.modules.get(cls.__module__)
    if _repeats_another(method):
        method = method.__wrapped__
    if module is None or not is_written_in(module, method):
        return False
    return method.__code__.co_qualname == f"{cls.__qualname__}.{name}"


def _repeats_another(method: Any) -> bool:
    """Tell whether this is a function of tenacity's, which calls another one until it succeeds."""
    return (
        type(method) is FunctionType
        and method.__globals__.get("__name__") == "tenacity"
        and hasattr(method, "__wrapped__")
    )
