"""Preprocessed states in place of texts' own: encoded behind similar texts ahead of requests."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from rag_accel.kv.disk import DiskStore
from rag_accel.kv.entry import ChunkLabel, KeyValues


class PreprocessedStore:
    """The states of a folder, for each text the one that was linked last. Used by one thread.

    Without such a link, or once its target is gone, it is the state behind the head alone.

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
    """Link a text to the state under another key, to be used from now on.

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
