"""An LRU cache of vectors, bounded in bytes and cleared when their model changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engines.embedding.checked_vectors import Vector

#: Approximate bytes of a text and an entry without the vector.
_ENTRY_BYTES = 300
_CHARACTER_BYTES = 4

Key = tuple[str, str, str]
"""The tenant, the role and the text."""


@dataclass(frozen=True, slots=True)
class KnownTexts:
    """The cached vectors of the texts of one work, and the places of the missing ones.

    Args:
        keys: of all its texts, in order.
        vectors: the cached ones, by place.
        missing: the places of the others.
        generation: of the model; it rises when that changes.
    """

    keys: tuple[Key, ...]
    vectors: Mapping[int, Vector]
    missing: tuple[int, ...]
    generation: int

    def joined(self, computed: Iterable[Vector]) -> list[Vector]:
        """Return the vectors of all texts in order, those that were computed among them."""
        found = {**self.vectors, **dict(zip(self.missing, computed, strict=True))}
        return [found[place] for place in range(len(self.keys))]

    def missing_of(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the texts that have to be computed, out of all of its texts."""
        return tuple(texts[place] for place in self.missing)


class VectorCache:
    """An LRU over vectors by tenant, role and text. Used on one thread.

    Args:
        max_bytes: most memory, 0 to keep nothing.
        watch: returns a check of whether the model is still the one it was at this call.
    """

    def __init__(self, max_bytes: int, watch: Callable[[], Callable[[], bool]]) -> None:
        self.max_bytes = max_bytes
        self.watch = watch
        self._is_same: Callable[[], bool] | None = None
        self._vectors: OrderedDict[Key, Vector] = OrderedDict()
        self._bytes = 0
        self._generation = 0
        self._hits = 0
        self._misses = 0

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the hits, misses and bytes."""
        return {
            "kept_vector_hits": self._hits,
            "kept_vector_misses": self._misses,
            "kept_vector_bytes": self._bytes,
        }

    def look_up_texts(self, namespace: str, role: str, texts: Sequence[str]) -> KnownTexts:
        return self.look_up(tuple((namespace, role, text) for text in texts))

    def look_up(self, keys: tuple[Key, ...]) -> KnownTexts:
        """Return the cached vectors of texts, after a check that the model has not changed."""
        self._renew()
        vectors: dict[int, Vector] = {}
        for place, key in enumerate(keys):
            vector = self._vectors.get(key)
            if vector is not None:
                self._vectors.move_to_end(key)
                vectors[place] = vector
        missing = tuple(place for place in range(len(keys)) if place not in vectors)
        self._hits += len(vectors)
        self._misses += len(missing)
        return KnownTexts(keys, vectors, missing, self._generation)

    def keep(self, known: KnownTexts, computed: Iterable[Vector]) -> None:
        """Cache computed vectors, unless the model has changed since the look-up."""
        self._renew()
        if known.generation != self._generation:
            return
        for place, vector in zip(known.missing, computed, strict=True):
            self._put(known.keys[place], vector)

    def clear(self) -> None:
        self._vectors.clear()
        self._bytes = 0
        self._is_same = None
        self._generation += 1

    def _renew(self) -> None:
        if self._is_same is None or not self._is_same():
            self.clear()
            self._is_same = self.watch()

    def _put(self, key: Key, vector: Vector) -> None:
        size = _size(key, vector)
        if key in self._vectors or size > self.max_bytes:
            return
        # A copy: it may be a row of what many texts were computed with.
        self._vectors[key] = np.array(vector)
        self._bytes += size
        while self._bytes > self.max_bytes:
            old, gone = self._vectors.popitem(last=False)
            self._bytes -= _size(old, gone)


def _size(key: Key, vector: Any) -> int:
    return vector.nbytes + _CHARACTER_BYTES * sum(map(len, key)) + _ENTRY_BYTES


def kept_in_front(kept: Sequence[VectorCache | None]) -> VectorCache | None:
    """Return an empty cache in front of several engines that compute the same vectors.

    None where the first of them, with which the others are compared, keeps none. All vectors are
    forgotten when the model of any engine that keeps some has changed.

    Args:
        kept: the cache of each engine, the first one's first.
    """
    known = [cache for cache in kept if cache is not None]
    if not kept or kept[0] is None:
        return None

    def watch() -> Callable[[], bool]:
        checks = [cache.watch() for cache in known]
        return lambda: all(check() for check in checks)

    return VectorCache(kept[0].max_bytes, watch)


def always_same() -> Callable[[], bool]:
    """Return the check of a model whose owner says that a text always has the same vector."""
    return lambda: True
