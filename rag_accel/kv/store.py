"""A store of attention states of texts and paths in memory, bounded in bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from rag_accel.kv.entry import ChunkLabel, LaneState, Purges
from rag_accel.kv.eviction import (
    EvictionPolicy,
    GuardedPolicy,
    LRUPolicy,
    SecondHitAdmission,
    eviction_policy,
)

NO_LABEL = ChunkLabel()
#: Counters of a store, and the bytes it holds.
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


class ChunkStore:
    """Attention states of texts and paths by key, in memory of this process.

    A state that is not in memory may arrive later, from the tier of a subclass: ``poll`` reports a
    key that ``is_pending`` after ``prefetch``, exactly once. Called by the engine's worker only,
    but where methods say from any thread.

    It admits everything until it is full; after that a state is admitted on its second request, so
    one-off chunks never evict hot ones, unless it ``admits_all``.

    Args:
        limit_bytes: most bytes of all states; a larger one is not kept.
        eviction: the order of eviction, or its name (``eviction_policy``); least recently used
            first by default.
        admits_all: whether a full store keeps every new state, which is better for nodes of trees
            that are asked for again at once.

    Raises:
        ConfigError: if there is no such policy, or another store has the same object.
    """

    def __init__(
        self,
        limit_bytes: int,
        eviction: EvictionPolicy | str | None = None,
        admits_all: bool = False,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._states: dict[bytes, LaneState] = {}
        self._eviction = LRUPolicy() if eviction is None else eviction_policy(eviction)
        self._sight = SecondHitAdmission()
        self._admits_all = admits_all
        self._is_full = False
        self._hits = self._misses = 0
        self._labels: dict[bytes, frozenset[str]] = {}
        self._num_purges = 0
        self._parents: dict[bytes, bytes] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}
        #: guards all of it: texts are forgotten from any thread
        self._lock = threading.RLock()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the states in memory."""
        return self._held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the counts so far, by the names in ``CHUNK_COUNTS``; from any thread."""
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
        """Return the keys of all states."""
        return list(self._states)

    @property
    def purges(self) -> Purges:
        """Return the purges so far, for the labels of states encoded from now on."""
        return (self._num_purges,)

    def digests(self, texts: Iterable[str], namespace: str) -> frozenset[str]:
        """Return what labels and states say of texts; white space around them does not count."""
        return frozenset(_digest(namespace, text) for text in texts)

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace, at once or a little later; from any thread."""
        gone = self.digests(texts, namespace)
        with self._lock:
            self._num_purges += 1
            for key in [key for key, label in self._labels.items() if not label.isdisjoint(gone)]:
                self.remove(key)

    def has_room(self, nbytes: int) -> bool:
        """Tell whether so many bytes have room without an eviction."""
        return self._held_bytes + nbytes <= self._limit_bytes

    def is_known(self, key: bytes) -> bool:
        """Tell whether a key was requested at least twice."""
        return self._sight.is_known(key)

    def may_have(self, key: bytes) -> bool:
        """Tell whether there is a state under a key, or may be where looking takes long."""
        return key in self._states

    def find(self, key: bytes) -> LaneState | None:
        """Return the state in memory under a key, and count it as used."""
        with self._lock:
            self._sight.count(key)
            state = self._states.get(key)
            if state is None:
                self._misses += 1
                return None
            self._hits += 1
            self._eviction.used(key)
            return state

    def put(
        self,
        key: bytes,
        state: LaneState,
        label: ChunkLabel = NO_LABEL,
        parent: bytes | None = None,
    ) -> bool:
        """Keep a state, if it is admitted; a state already under its key stays.

        Return whether it is kept in memory.

        Args:
            key: of the state.
            state: to keep.
            label: the texts that it depends on.
            parent: key of the state behind which it was encoded: it is kept in memory no longer
                than that one.
        """
        with self._lock:
            has_room = not self._is_full and self.has_room(state.nbytes)
            if key in self or has_room or self._admits_all or self.is_known(key):
                return self.keep(key, state, label, parent)
            return False

    def keep(
        self,
        key: bytes,
        state: LaneState,
        label: ChunkLabel = NO_LABEL,
        parent: bytes | None = None,
    ) -> bool:
        """Keep a state whether or not it is admitted, unless it is larger than the whole store.

        Neither is it kept if its parent is not, or would have to go for it.
        """
        with self._lock:
            if key in self._states:
                return True
            if state.nbytes > self._limit_bytes:
                return False
            if label.purges is not None and label.purges != self.purges:
                return False
            if parent is not None and parent not in self._states:
                return False
            while not self.has_room(state.nbytes):
                self._is_full = True
                victim = self._eviction.victim()
                if victim == parent:
                    return False
                self._evict(victim)
            self._states[key] = state
            self._labels[key] = self.digests((label.text,), label.namespace) | label.seen
            self._held_bytes += state.nbytes
            if parent is None:
                self._eviction.added(key, state.nbytes)
            else:
                self._children.setdefault(parent, {})[key] = None
                self._parents[key] = parent
                self._eviction.added(key, state.nbytes, parent)
            return True

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins, and which keys it and those behind it read, in order."""
        with self._lock:
            self._eviction.began(requests)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Begin to load states that are not in memory; from any thread. Bounded: may do nothing."""

    def hint(self, keys: Callable[[], Iterable[bytes]]) -> None:
        """Learn of keys that may be requested soon; from any thread, at once. May do nothing.

        Args:
            keys: returns them; called at most once, by a thread of the store's.
        """

    def pin(self, keys: Iterable[bytes]) -> None:
        """Note that a prompt under way needs keys: no hint pushes them out of memory."""

    def unpin(self, keys: Iterable[bytes]) -> None:
        """Note that a prompt that held keys is over."""

    def is_pending(self, key: bytes) -> bool:
        """Tell whether a key is being loaded, and ``poll`` has not reported it yet."""
        return False

    def poll(self) -> Collection[tuple[bytes, LaneState | None]]:
        """Return the keys loaded since the last call, each with its state or None."""
        return ()

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, for at most so long."""

    def peek(self, key: bytes) -> LaneState | None:
        """Return the state under a key, without counting it as used."""
        return self._states.get(key)

    def put_prefetched(self, key: bytes, state: LaneState, pinned: Container[bytes]) -> bool:
        """Keep a state unless that would evict a pinned one; tell whether it is kept."""
        if state.nbytes > self._limit_bytes:
            return False
        while key not in self._states and not self.has_room(state.nbytes):
            victim = self._eviction.victim()
            if victim in pinned:
                return False
            self._evict(victim)
        return self.keep(key, state)

    def remove(self, key: bytes) -> None:
        """Forget the state under a key, if there is one, and those behind it."""
        if key in self._states:
            self._evict(key)

    def clear(self) -> None:
        """Forget the states in memory."""
        with self._lock:
            for key in self.kept:
                self.remove(key)
            self._is_full = False

    def close(self) -> None:
        """Forget the states in memory, end background threads, and give the policy back."""
        self.clear()
        if isinstance(self._eviction, GuardedPolicy):
            self._eviction.release()

    def _evict(self, key: bytes) -> None:
        """Remove a state after all that are behind it."""
        tree = [key]
        for found in tree:
            tree += self._children.get(found, ())
        for found in reversed(tree):
            self._held_bytes -= self._states.pop(found).nbytes
            del self._labels[found]
            parent = self._parents.pop(found, None)
            if parent is not None:
                del self._children[parent][found]
                if not self._children[parent]:
                    del self._children[parent]
            self._eviction.removed(found)


def _digest(namespace: str, text: str) -> str:
    digest = hashlib.sha256()
    for part in (namespace, text.strip()):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
