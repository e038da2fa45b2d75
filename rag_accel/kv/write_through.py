"""A store that writes states to a folder at once, for the program that fills it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues, LaneState, Purges
from rag_accel.kv.store import NO_LABEL, ChunkStore


class WriteThroughStore(ChunkStore):
    """States in a folder, the latest of them in memory, too. Used by one thread.

    Nothing runs in the background: ``find`` reads a state, and ``put`` writes it before it returns.

    Args:
        limit_bytes: most bytes in memory.
        disk: the folder.
    """

    def __init__(self, limit_bytes: int, disk: DiskStore) -> None:
        super().__init__(limit_bytes)
        self._disk = disk
        #: bytes of keys and values that were written
        self.written_bytes = 0

    @property
    def counts(self) -> Mapping[str, int]:
        disk = self._disk.counts
        return {
            **super().counts,
            "chunk_files_refused": sum(disk.refused.values()),
            "chunk_writes_dropped": disk.dropped,
            "chunk_disk_bytes": self._disk.held_bytes,
        }

    @property
    def purges(self) -> Purges:
        """Return the purges so far, by any process."""
        return self._disk.folder.purges

    def digests(self, texts: Iterable[str], namespace: str) -> frozenset[str]:
        return self._disk.folder.text_digests(texts, namespace)

    def forget(self, texts: Iterable[str], namespace: str) -> None:
        """Remove the states of texts of a namespace.

        Raises:
            OSError: the folder cannot be written.
        """
        folder, wanted = self._disk.folder, tuple(texts)
        tenant = folder.namespace_digest(namespace)
        self._disk.forget({(tenant, folder.text_digest(text)) for text in wanted})
        super().forget(wanted, namespace)

    def may_have(self, key: bytes) -> bool:
        return True

    def find(self, key: bytes) -> LaneState | None:
        found = super().find(key)
        if found is None:
            found = self._disk.find(key)
            if found is not None:
                super().put(key, found)
        return found

    def put(
        self,
        key: bytes,
        state: LaneState,
        label: ChunkLabel = NO_LABEL,
        parent: bytes | None = None,
    ) -> bool:
        """Write a state; return whether it is in memory, too."""
        assert isinstance(state, KeyValues)
        if label.purges not in (None, self.purges):
            return False
        if self._disk.put(key, state, label):
            self.written_bytes += state.nbytes
        return super().put(key, state, replace(label, purges=None), parent)
