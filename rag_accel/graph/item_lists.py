"""Declare that a Function stage reads a list off a completion, or takes an item of such a list.

Functions derived from these mean what they mean without them: a list is read when its completion
has ended. The pass ``pipeline_decoding`` may let an item be taken as soon as it is written.
"""

from __future__ import annotations

from abc import abstractmethod

from rag_accel.graph.item_reader import ItemReader


class ListFunction:
    """Be a pure function that reads a list off its first argument, the text of a completion.

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


class ItemFunction:
    """Be a pure function that returns one item of its only argument, a list."""

    __slots__ = ()

    @property
    @abstractmethod
    def item_place(self) -> int:
        """Return the item's place, counted from 0."""
