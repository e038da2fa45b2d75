"""Let the leaf methods of classes be scheduled for runs that ask for it, and undo that again.

A patched method does what it always did unless the call belongs to an accelerated run. Patches are
counted, so that a class is restored when the last program that uses it is gone.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.embeddings import Embeddings

from langchain_rag_accel.context import find_identity
from langchain_rag_accel.embedding import wrap_embeddings
from langchain_rag_accel.leaf_methods import LEAVES, LeafMethod, is_default, is_scheduled, leaf_base
from langchain_rag_accel.wrappers import FindIdentity, Method, wrap
from rag_accel.accelerator import RequestIdentity

_ABSENT = object()


def _find(obj: Any) -> RequestIdentity | None:
    return find_identity()


@dataclass(frozen=True, slots=True)
class Place:
    """Name one method of one class that is patched."""

    cls: type
    leaf: LeafMethod


@dataclass(frozen=True, slots=True)
class _Patch:
    """Remember what stands in a place, and what stood there before."""

    wrapper: Any
    original: Any


class Patches:
    """Count who needs which method patched."""

    def __init__(self) -> None:
        # Re-entrant: a program may be collected, and so unpatched, while its thread patches.
        self._lock = threading.RLock()
        self._counts: Counter[Place] = Counter()
        self._made: dict[Place, _Patch] = {}

    def add(self, places: Iterable[Place]) -> None:
        """Patch methods, or count another user of those already patched."""
        with self._lock:
            for place in places:
                if place not in self._made:
                    self._made[place] = _apply(place)
                self._counts[place] += 1

    def remove(self, places: Iterable[Place]) -> None:
        """Take back one use; restore what nobody uses any more."""
        with self._lock:
            for place in places:
                self._counts[place] -= 1
                if self._counts[place] == 0:
                    del self._counts[place]
                    _restore(place, self._made.pop(place))

    def patched(self) -> list[tuple[type, str]]:
        """Return the methods patched now."""
        with self._lock:
            return [(place.cls, place.leaf.name) for place in self._counts]


patches = Patches()


class Interception:
    """Patch the classes of some leaves for as long as this object, or a copy of it, lives."""

    def __init__(self, leaves: Iterable[Any]) -> None:
        places = places_of(dict.fromkeys(type(leaf) for leaf in leaves))
        patches.add(places)
        weakref.finalize(self, patches.remove, places).atexit = False

    def __copy__(self) -> Interception:
        return self

    def __deepcopy__(self, memo: object) -> Interception:
        return self


def leaf_classes() -> Iterator[type]:
    """Yield every class of leaves that the process knows."""
    seen: set[type] = set()
    waiting: list[type] = list(LEAVES)
    while waiting:
        for cls in waiting.pop().__subclasses__():
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
                yield cls


def places_of(classes: Iterable[type]) -> list[Place]:
    """Return each leaf method of the classes where it is defined, so that it is patched once."""
    found: dict[Place, None] = {}
    for cls in classes:
        base = None if is_scheduled(cls) else leaf_base(cls)
        for leaf in LEAVES[base] if base is not None else ():
            if not hasattr(cls, leaf.name):
                continue
            if not is_default(cls, leaf):
                found[Place(_definer(cls, leaf.name), leaf)] = None
            elif leaf.sync is not None:
                found[Place(cls, leaf)] = None
    return list(found)


def scheduled_method(cls: type, leaf: LeafMethod, find: FindIdentity) -> Method | None:
    """Return the scheduled version of a leaf method, ``None`` if there is nothing to schedule."""
    wrapped = wrap(cls, leaf, find)
    if wrapped is None or leaf_base(cls) is not Embeddings:
        return wrapped
    return wrap_embeddings(cls, leaf, wrapped, find)


def _definer(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in base.__dict__)


def _apply(place: Place) -> _Patch:
    wrapper = scheduled_method(place.cls, place.leaf, _find)
    assert wrapper is not None, "only methods that exist are patched"
    original = place.cls.__dict__.get(place.leaf.name, _ABSENT)
    setattr(place.cls, place.leaf.name, wrapper)
    return _Patch(wrapper, original)


def _restore(place: Place, patch: _Patch) -> None:
    name = place.leaf.name
    if place.cls.__dict__.get(name) is not patch.wrapper:
        return  # somebody replaced it meanwhile; his version may call ours, which lets it through
    if patch.original is _ABSENT:
        delattr(place.cls, name)
    else:
        setattr(place.cls, name, patch.original)
