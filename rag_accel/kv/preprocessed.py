"""Links to states of texts that were encoded behind similar ones, ahead of requests."""

from __future__ import annotations

import contextlib

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues


class PreprocessedStore:
    """The states of a folder, for each key the one that was linked last. Used by one thread.

    Without such a link, or once its target is gone, it is the state under the key itself.

    Args:
        disk: the folder.
    """

    def __init__(self, disk: DiskStore) -> None:
        self._disk = disk

    def find(self, key: bytes) -> KeyValues | None:
        """Return the state to be used for a key."""
        with contextlib.suppress(OSError):  # a disk that fails
            target = self._disk.folder.referred(self._disk.folder.name(key))
            state = None if target is None else self._disk.find_named(target)
            if state is not None:
                return state
        return self._disk.find(key)

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        """Keep the state under a key itself."""
        return self._disk.put(key, state, label)


def link(disk: DiskStore, key: bytes, target: bytes) -> None:
    """Link a key to the state under another, to be used from now on.

    Args:
        disk: the folder.
        key: of the text's state behind others (``ChunkSource.behind_others``).
        target: of the state to use.

    Raises:
        OSError: it cannot be written.
    """
    folder = disk.folder
    name, wanted = folder.name(key), folder.name(target)
    if folder.referred(name) != wanted:
        with folder.locked():
            folder.refer(name, wanted)
