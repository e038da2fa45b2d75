"""States of texts in memory, and below it in a folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues, LaneState
from rag_accel.kv.eviction import EvictionPolicy
from rag_accel.kv.loader import Loader
from rag_accel.kv.store import NO_LABEL, HostStore


class TieredStore:
    """States in memory over those in a folder, which a thread reads and writes.

    A state goes to each of both at once while there is room, and to a full one only if it was
    asked for before. What is found in the folder was asked for before, by whichever process. What
    memory gives up stays with the prompts that hold it.

    Args:
        limit_bytes: most bytes in memory.
        disk: the folder; from now on this store's alone.
        eviction: what memory gives up first; the least lately used by default.
    """

    def __init__(
        self, limit_bytes: int, disk: DiskStore, eviction: EvictionPolicy | None = None
    ) -> None:
        self._host = HostStore(limit_bytes, eviction)
        self._disk = disk
        self._loader = Loader(disk)
        self._hits_disk = self._misses = 0

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what is kept in memory."""
        return self._host.held_bytes

    @property
    def counts(self) -> Mapping[str, int]:
        """Return what was counted so far, by the names in ``CHUNK_COUNTS``; from any thread."""
        disk = self._disk.counts
        return {
            **self._host.counts,
            "chunk_hits_disk": self._hits_disk,
            "chunk_misses": self._misses,
            "chunk_files_refused": sum(list(disk.refused.values())),
            "chunk_files_unkept": disk.unkept + self._loader.dropped,
            "chunk_disk_bytes": self._disk.held_bytes,
        }

    def find(self, key: bytes) -> LaneState | None:
        """Return what is in memory under a key, and count it as used."""
        return self._host.find(key)

    def put(self, key: bytes, state: LaneState, label: ChunkLabel = NO_LABEL) -> bool:
        """Keep a state, if it is admitted; what is kept under its key already stays."""
        is_worth_it = self._host.is_known(key) or self._disk.has_room(state.nbytes)
        if isinstance(state, KeyValues) and is_worth_it:
            self._loader.write(key, state, label)
        return self._host.put(key, state)

    def want(self, keys: Iterable[bytes]) -> None:
        """Begin to look in the folder; from any thread."""
        self._loader.want(keys)

    def is_looked_for(self, key: bytes) -> bool:
        """Tell whether a key is looked for, and ``arrived`` has not reported it yet."""
        return self._loader.is_wanted(key)

    def arrived(self) -> Collection[tuple[bytes, LaneState | None]]:
        """Return what was looked for since the last call: its state, or None if there is none."""
        arrived = self._loader.fetch()
        for key, state in arrived:
            if state is None:
                self._misses += 1
            else:
                self._hits_disk += 1
                self._host.keep(key, state)
        return arrived

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, for at most so long."""
        self._loader.wait(timeout_s)

    def clear(self) -> None:
        """Forget what is in memory; files stay."""
        self._host.clear()

    def close(self) -> None:
        """Forget what is in memory, write what waits to be written and end the thread."""
        self._loader.close()
        self._host.clear()
