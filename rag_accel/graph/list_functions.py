"""Functions of lists and texts of which passes know something that they plan with.

A pure function depends on nothing but its arguments and has no effect but its result or error, so
nobody can notice when it runs: ``prune_dependencies`` lets work of engines go ahead of it.

They mean the same without the passes: a list is read when its completion has ended. The pass
``pipeline_decoding`` may let an item be taken as soon as it is written, and ``rerank_by_source``
may rerank what one list adds to a union before the next is there.
"""

from __future__ import annotations

from abc import abstractmethod
from types import FunctionType
from typing import Final, TypeVar

from rag_accel.graph.item_lists import ItemReader

_Function = TypeVar("_Function", bound=FunctionType)

# Not an attribute of each: functools.wraps would copy it to functions that are not pure.
_PURE: Final = set[FunctionType]()


class PureFunction:
    """A pure function; iterating over its arguments counts as part of it."""

    __slots__ = ()


def pure(function: _Function) -> _Function:
    """Declare a function of a module pure, as a ``PureFunction`` is."""
    _PURE.add(function)
    return function


def is_pure(function: object) -> bool:
    """Tell whether a function is declared pure; asks nothing of the function itself."""
    cls = type(function)
    return function in _PURE if cls is FunctionType else issubclass(cls, PureFunction)


class ListFunction(PureFunction):
    """A pure function that reads a list off its first argument, the text of a completion.

    The items that ``reader`` finds are the first items of what the function returns, whatever its
    other arguments are; those it does not find, the function may add at the end.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def item_count(self) -> int:
        """Return how many items there probably are, from 1."""

    @abstractmethod
    def reader(self) -> ItemReader:
        """Return a fresh reader of one completion."""


class ItemFunction(PureFunction):
    """A pure function that returns one item of its only argument, a list."""

    __slots__ = ()

    @property
    @abstractmethod
    def item_place(self) -> int:
        """Return the item's place, counted from 0."""


class UnionFunction(PureFunction):
    """A pure function of lists of documents that returns their union as a tuple, in order.

    What it returns for the first of its arguments alone is the beginning of what it returns for all
    of them: ``union(a, b)[: len(union(a))] == union(a)``.
    """

    __slots__ = ()


class TextFunction:
    """A function that returns a text of a length known before it is called (Teola 4.2, Pass 3)."""

    __slots__ = ()

    @property
    @abstractmethod
    def about_tokens(self) -> int:
        """Return how many tokens the text has, about."""
