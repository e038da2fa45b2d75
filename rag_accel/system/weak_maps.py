"""Values by foreign objects and classes, kept for their lifetime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class WeakIdDict(Generic[T]):
    """Values by the identity of their owners, which need be neither hashable nor unequal."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[ref[Any], T]] = {}

    def __contains__(self, owner: Any) -> bool:
        return self.get(owner) is not None

    def get(self, owner: Any) -> T | None:
        known = self._of.get(id(owner))
        return known[1] if known is not None and known[0]() is owner else None

    def add(self, owner: Any, value: T) -> T:
        """Keep a value as long as its owner lives; return the one that another thread kept."""
        key = id(owner)

        def forget(gone: ref[Any]) -> None:
            known = self._of.get(key)
            if known is not None and known[0] is gone:
                del self._of[key]

        known = self._of.get(key)
        if known is not None and known[0]() is not owner:
            del self._of[key]
        return self._of.setdefault(key, (ref(owner, forget), value))[1]

    def forget(self, owner: Any) -> None:
        if self._of and owner in self:
            self._of.pop(id(owner), None)


class ByClass(Generic[T]):
    """A look at a class that looks once at each and answers by its identity, as each call asks.

    A look-up in a ``WeakKeyDictionary`` takes five times as long.

    Args:
        look: tells something of a class, which does not change.
    """

    __slots__ = ("_classes", "_found", "_look", "get")

    def __init__(self, look: Callable[[type], T]) -> None:
        self._look = look
        self._found: dict[int, T] = {}
        self._classes: dict[int, ref[type]] = {}
        #: what is known by now of the class with an identity
        self.get = self._found.get

    def __call__(self, cls: type) -> T:
        try:
            return self._found[id(cls)]
        except KeyError:
            return self._seen(cls)

    def clear(self) -> None:
        """Look at all classes again."""
        self._found.clear()

    def _seen(self, cls: type) -> T:
        at = id(cls)
        found = self._look(cls)

        def forget(_: object) -> None:
            self._found.pop(at, None)
            self._classes.pop(at, None)

        self._classes[at] = ref(cls, forget)
        self._found[at] = found
        return found
