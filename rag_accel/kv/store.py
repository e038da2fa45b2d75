"""Texts whose attention state is kept, bounded in bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Protocol

from rag_accel.kv.entry import ChunkLabel, LaneState, Purges
from rag_accel.kv.eviction import EvictionPolicy, LRUPolicy, SecondHitAdmission

NO_LABEL = ChunkLabel()
#: What a store counts, and the bytes it holds.
CHUNK_COUNTS: tuple[str, ...] = (
    "chunk_hits_memory",
    "chunk_hits_disk",
    "chunk_misses",
    "chunk_files_refused",
    "chunk_writes_dropped",
    "chunk_prefetch_loaded",
    "chunk_prefetch_dropped",
    "chunk_prefetch_failed",
    "chunk_memory_bytes",
    "chunk_disk_bytes",
)


class ChunkStore(Protocol):
    """What keeps the state of texts by their keys. Called by the engine's worker only.

    A state that is not in memory may be found a little later: a key that ``is_pending`` after
    ``prefetch`` is reported by ``poll``, exactly once.
    """

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept in memory."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what was counted so far, by the names in ``CHUNK_COUNTS``; from any thread."""
        ...

    @property
    def purges(self) -> Purges:
        """Return what was purged so far, for the label of what is encoded from now on."""
        ...

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace, at once or a little later; from any thread.

        White space around a text does not count.
        """
        ...

    def find(self, key: bytes) -> LaneState | None:
        """Return what is in memory under a key, and count it as used."""
        ...

    def put(self, key: bytes, state: LaneState, label: ChunkLabel = NO_LABEL) -> bool:
        """Keep a state, if it is admitted; what is kept under its key already stays.

        Return whether it is kept in memory.
        """
        ...

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Begin to look for what is not in memory; from any thread. Bounded: may do nothing."""
        ...

    def hint(self, keys: Callable[[], Iterable[bytes]]) -> None:
        """Learn of keys that may be asked for soon; from any thread, at once. May do nothing.

        Args:
            keys: returns them; called once at most, by a thread of the store's.
        """
        ...

    def pin(self, keys: Iterable[bytes]) -> None:
        """Note that a prompt under way needs keys: no hint pushes them out of memory."""
        ...

    def unpin(self, keys: Iterable[bytes]) -> None:
        """Note that a prompt that held keys is over."""
        ...

    def is_pending(self, key: bytes) -> bool:
        """Tell whether a key is looked for, and ``poll`` has not reported it yet."""
        ...

    def poll(self) -> Collection[tuple[bytes, LaneState | None]]:
        """Return what was looked for since the last call: its state, or None if there is none."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, for at most so long."""
        ...

    def clear(self) -> None:
        """Forget what is in memory."""
        ...

    def close(self) -> None:
        """Forget what is in memory and end what runs beside; called once, at the end."""
        ...


class HostStore:
    """States in memory of this process.

    Until the first one is given up, whatever has room is kept; from then on only what was asked
    for before. So what is asked for once takes no room that a given up state has left, either.

    Args:
        limit_bytes: most bytes of what is kept; a state larger than this is not.
        eviction: what goes first; the least lately used by default.
    """

    def __init__(self, limit_bytes: int, eviction: EvictionPolicy | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._states: dict[bytes, LaneState] = {}
        self._eviction = eviction or LRUPolicy()
        self._sight = SecondHitAdmission()
        self._is_full = False
        self._hits = self._misses = 0
        self._labels: dict[bytes, frozenset[bytes]] = {}
        self._num_purges = 0
        #: guards all of it: texts are forgotten from any thread
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept."""
        return self._held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what was counted so far, by the names in ``CHUNK_COUNTS``."""
        return {
            **dict.fromkeys(CHUNK_COUNTS, 0),
            "chunk_hits_memory": self._hits,
            "chunk_misses": self._misses,
            "chunk_memory_bytes": self._held_bytes,
        }

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, key: bytes) -> bool:
        return key in self._states

    @property
    def kept(self) -> list[bytes]:
        """Return the keys of what is kept."""
        return list(self._states)

    @property
    def purges(self) -> Purges:
        """Return how often texts were forgotten."""
        return (self._num_purges,)

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace; from any thread."""
        gone = {_digest(namespace, text) for text in texts}
        with self._lock:
            self._num_purges += 1
            for key in [key for key, label in self._labels.items() if not label.isdisjoint(gone)]:
                self._give_up(key)

    def has_room(self, nbytes: int) -> bool:
        """Tell whether so many bytes have room, with nothing given up."""
        return self._held_bytes + nbytes <= self._limit_bytes

    def is_known(self, key: bytes) -> bool:
        """Tell whether a key was asked for at least twice."""
        return self._sight.is_known(key)

    def find(self, key: bytes) -> LaneState | None:
        """Return what is kept under a key, and count it as used."""
        with self._lock:
            self._sight.asked(key)
            state = self._states.get(key)
            if state is None:
                self._misses += 1
                return None
            self._hits += 1
            self._eviction.used(key)
            return state

    def put(self, key: bytes, state: LaneState, label: ChunkLabel = NO_LABEL) -> bool:
        """Keep a state, if it is admitted; what is kept under its key already stays."""
        with self._lock:
            has_room = not self._is_full and self.has_room(state.nbytes)
            if key in self or has_room or self.is_known(key):
                return self.keep(key, state, label)
            return False

    def keep(self, key: bytes, state: LaneState, label: ChunkLabel = NO_LABEL) -> bool:
        """Keep a state however seldom it was asked for, unless it is larger than all the room."""
        with self._lock:
            if key in self._states:
                return True
            if state.nbytes > self._limit_bytes or label.purges not in (None, self.purges):
                return False
            while not self.has_room(state.nbytes):
                self._is_full = True
                self._give_up(self._eviction.victim())
            self._states[key] = state
            texts = (label.text, *label.neighbours)
            self._labels[key] = frozenset(_digest(label.namespace, text) for text in texts)
            self._held_bytes += state.nbytes
            self._eviction.added(key, state.nbytes)
            return True

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Do nothing: all that is kept is in memory."""

    def hint(self, keys: Callable[[], Iterable[bytes]]) -> None:
        """Do nothing: all that is kept is in memory."""

    def pin(self, keys: Iterable[bytes]) -> None:
        """Do nothing: no hint pushes anything out."""

    def unpin(self, keys: Iterable[bytes]) -> None:
        """Do nothing: no hint pushes anything out."""

    def is_pending(self, key: bytes) -> bool:
        """Return False: all that is kept is in memory."""
        return False

    def poll(self) -> Collection[tuple[bytes, LaneState | None]]:
        """Return nothing: all that is kept is in memory."""
        return ()

    def wait(self, timeout_s: float) -> None:
        """Return at once: nothing is looked for."""

    def peek(self, key: bytes) -> LaneState | None:
        """Return what is kept under a key, without counting it as used."""
        return self._states.get(key)

    def put_beside(self, key: bytes, state: LaneState, held: Container[bytes]) -> bool:
        """Keep a state if it has room without those held; tell whether it is kept."""
        if state.nbytes > self._limit_bytes:
            return False
        while key not in self._states and not self.has_room(state.nbytes):
            victim = self._eviction.victim()
            if victim in held:
                return False
            self._give_up(victim)
        return self.keep(key, state)

    def remove(self, key: bytes) -> None:
        """Forget what is kept under a key, if anything."""
        if key in self._states:
            self._give_up(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            for key in self.kept:
                self._give_up(key)
            self._is_full = False

    def close(self) -> None:
        """Forget everything."""
        self.clear()

    def _give_up(self, key: bytes) -> None:
        self._held_bytes -= self._states.pop(key).nbytes
        del self._labels[key]
        self._eviction.removed(key)


def _digest(namespace: str, text: str) -> bytes:
    """Return what tells texts of tenants apart without holding them."""
    digest = hashlib.sha256()
    for part in (namespace, text.strip()):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()
