"""A tiered store of states: memory over a folder."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues, LaneState, Purges
from rag_accel.kv.eviction import EvictionPolicy
from rag_accel.kv.loader import MOST_AHEAD, Loader
from rag_accel.kv.store import NO_LABEL, ChunkStore

#: The part of memory for prefetched states that were not requested yet.
AHEAD_SHARE = 0.25


class TieredStore(ChunkStore):
    """States in memory over those in a folder, which a thread reads and writes.

    A state goes to both at once while there is room, and into a full tier on its second request. A
    state in the folder counts as requested before, by whichever process. Prompts keep evicted
    states as long as they need them.

    The latest hints are prefetched into memory, up to ``AHEAD_SHARE`` of it; they never evict a
    state that a running prompt has pinned.

    Args:
        limit_bytes: most bytes in memory.
        disk: the folder; from now on this store's alone.
        eviction: the order of eviction from memory, or its name (``eviction_policy``); least
            recently used first by default.
        admits_all: whether full memory keeps every new state; the folder waits for its second
            request even so.
    """

    def __init__(
        self,
        limit_bytes: int,
        disk: DiskStore,
        eviction: EvictionPolicy | str | None = None,
        admits_all: bool = False,
    ) -> None:
        super().__init__(limit_bytes, eviction, admits_all)
        self._disk = disk
        self._loader = Loader(disk, self._keep_ahead)
        self._ahead_limit = int(limit_bytes * AHEAD_SHARE)
        self._ahead: OrderedDict[bytes, int] = OrderedDict()
        self._held: Counter[bytes] = Counter()
        self._purges = disk.folder.purges
        self._forgotten: set[tuple[str, str]] = set()
        self._hits_disk = self._absent = 0

    @property
    def counts(self) -> Mapping[str, int]:
        disk, hints = self._disk.counts, self._loader.hints
        return {
            **super().counts,
            "chunk_hits_disk": self._hits_disk,
            "chunk_misses": self._absent,
            "chunk_files_refused": sum(list(disk.refused.values())),
            "chunk_writes_dropped": disk.dropped + self._loader.dropped,
            "chunk_prefetch_loaded": hints.loaded,
            "chunk_prefetch_dropped": hints.dropped,
            "chunk_prefetch_failed": hints.failed,
            "chunk_disk_bytes": self._disk.held_bytes,
        }

    @property
    def purges(self) -> Purges:
        """Return the purges so far, by any process."""
        self._look_for_purges()
        return self._purges

    def digests(self, texts: Iterable[str], namespace: str) -> frozenset[str]:
        return self._disk.folder.text_digests(texts, namespace)

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Remove texts of a namespace from memory and folder a little later; from any thread."""
        folder = self._disk.folder
        tenant = folder.namespace_digest(namespace)
        labels = {(tenant, folder.text_digest(text)) for text in texts}
        with self._lock:
            is_due = not self._forgotten
            self._forgotten |= labels
        if labels and is_due:
            self._loader.first(self._forget)

    def may_have(self, key: bytes) -> bool:
        return True

    def find(self, key: bytes) -> LaneState | None:
        self._look_for_purges()
        with self._lock:
            self._ahead.pop(key, None)
            return super().find(key)

    def put(
        self,
        key: bytes,
        state: LaneState,
        label: ChunkLabel = NO_LABEL,
        parent: bytes | None = None,
    ) -> bool:
        if label.purges is not None and label.purges != self.purges:
            return False
        is_worth_it = self.is_known(key) or self._disk.has_room(state.nbytes)
        if isinstance(state, KeyValues) and is_worth_it:
            self._loader.write(key, state, label)
        return super().put(key, state, parent=parent)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Begin to load keys from the folder; from any thread."""
        self._loader.prefetch(keys)

    def hint(self, keys: Callable[[], Iterable[bytes]]) -> None:
        """Prefetch the states of keys into memory; from any thread."""
        self._loader.hint(lambda: self._not_here(keys()))

    def _not_here(self, keys: Iterable[bytes]) -> list[bytes]:
        wanted = list(islice(keys, MOST_AHEAD))
        with self._lock:
            return [key for key in wanted if key not in self]

    def pin(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            self._held.update(keys)

    def unpin(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            self._held.subtract(keys)
            self._held += Counter()  # without those that nothing holds

    def is_pending(self, key: bytes) -> bool:
        return self._loader.is_wanted(key)

    def poll(self) -> Collection[tuple[bytes, LaneState | None]]:
        with self._lock:  # a purge comes before all of it or after
            arrived = self._loader.fetch()
            for key, state in arrived:
                if state is None:
                    self._absent += 1
                else:
                    self._hits_disk += 1
                    self.keep(key, state)
        return arrived

    def wait(self, timeout_s: float) -> None:
        self._loader.wait(timeout_s)

    def close(self) -> None:
        """Forget the states in memory, finish waiting writes and end the thread."""
        self._loader.close()
        super().close()

    def _forget(self) -> None:
        with self._lock:
            labels, self._forgotten = self._forgotten, set()
        self._disk.forget(labels)
        self._look_for_purges()

    def _look_for_purges(self) -> None:
        """Forget states in memory whose files a purge removed."""
        purges = self._disk.folder.purges
        if purges == self._purges:
            return
        with self._lock:
            self._purges = purges
            self._loader.purged()
            for key in self.kept:
                state = self.peek(key)
                # A state that has seen other texts may have seen any that was removed.
                has_seen = isinstance(state, KeyValues) and state.seen
                if has_seen or not self._disk.has(key):
                    self.remove(key)

    def _keep_ahead(self, key: bytes, state: KeyValues) -> bool:
        """Keep a prefetched state, in place of older ones; called by the loader's thread."""
        with self._lock:
            if key in self:
                return True
            if self._loader.is_stale:
                return False
            self._ahead = OrderedDict(
                (known, size) for known, size in self._ahead.items() if known in self
            )
            if state.nbytes > self._ahead_limit:
                return False
            while sum(self._ahead.values()) + state.nbytes > self._ahead_limit:
                oldest, _ = self._ahead.popitem(last=False)
                if oldest not in self._held:
                    self.remove(oldest)
            if not self.put_prefetched(key, state, self._held):
                return False
            self._ahead[key] = state.nbytes
            return True
