"""Pending loads of texts' states from a store, and the prompts that wait for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rag_accel.clock import Clock
from rag_accel.kv.entry import LaneState
from rag_accel.kv.store import ChunkStore

#: Seconds after which a text is computed whatever the disk does.
PATIENCE_S = 5.0

Reader = TypeVar("Reader", bound=Hashable)


@dataclass(slots=True)
class Lookup(Generic[Reader]):
    """A text that is looked for.

    Args:
        key: its key in the store.
        began: when the load began, in seconds of the clock.
        readers: the prompts that wait for it, in their order.
    """

    key: bytes
    began: float
    readers: dict[Reader, None] = field(default_factory=dict[Reader, None])


class PendingLoads(Generic[Reader]):
    """All texts of an engine that are looked for in a store. Used by one thread.

    A store that has not answered for ``PATIENCE_S`` seconds, such as a disk that hangs, gets no
    further loads until it does; its pending ones count as misses.
    """

    def __init__(self, store: ChunkStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._overdue: set[bytes] = set()
        self._by_key: dict[bytes, Lookup[Reader]] = {}

    def __len__(self) -> int:
        return len(self._by_key) + len(self._overdue)

    def begin(self, key: bytes, reader: Reader) -> bool:
        """Look for a text for a reader; return False where there is nowhere to look."""
        if self._overdue:
            return False
        self._store.prefetch([key])
        if not self._store.is_pending(key):
            return False
        lookup = self._by_key.setdefault(key, Lookup(key, self._clock.now()))
        lookup.readers[reader] = None
        return True

    def ended(self) -> Iterator[tuple[Lookup[Reader], LaneState | None]]:
        """Yield the loads that ended, with a state or None; those without readers are left out."""
        for key, state in self._store.poll():
            self._overdue.discard(key)
            lookup = self._by_key.pop(key, None)
            if lookup is not None:
                yield lookup, state
        latest = self._clock.now() - PATIENCE_S
        for lookup in [load for load in self._by_key.values() if load.began < latest]:
            del self._by_key[lookup.key]
            self._overdue.add(lookup.key)
            yield lookup, None

    def forget(self, key: bytes, reader: Reader) -> bool:
        """Drop a reader; return False where its text is not looked for."""
        lookup = self._by_key.get(key)
        if lookup is None:
            return False
        del lookup.readers[reader]
        if not lookup.readers:
            del self._by_key[key]
        return True
