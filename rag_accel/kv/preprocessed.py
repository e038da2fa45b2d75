"""States of texts that were encoded behind others offline, found where the text's own is sought."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues


class PreprocessedStore:
    """The states of a folder, of each text the one that was preferred last. Used by one thread.

    Where none was, or the one that was is gone, it is the state the text has behind the head alone.

    Args:
        disk: the folder.
    """

    def __init__(self, disk: DiskStore) -> None:
        self._disk = disk

    def find(self, key: bytes) -> KeyValues | None:
        """Return the state to be used for a text.

        Args:
            key: of its state behind the head alone.
        """
        with contextlib.suppress(OSError):  # a disk that fails
            target = self._disk.folder.referred(self._disk.folder.name(key))
            state = None if target is None else self._disk.find_named(target)
            if state is not None:
                return replace(state, preprocessed=True)
        return self._disk.find(key)

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        """Keep the state of a text behind the head alone."""
        return self._disk.put(key, state, label)


def link(disk: DiskStore, key: bytes, target: bytes) -> None:
    """Say that the state under one key is to be used for a text, from now on.

    Args:
        disk: the folder.
        key: of the text's state behind the head alone.
        target: of the state to use.

    Raises:
        OSError: it cannot be written.
    """
    folder = disk.folder
    name, wanted = folder.name(key), folder.name(target)
    if folder.referred(name) != wanted:
        with folder.locked():
            folder.refer(name, wanted)
