"""Attention states of texts in a folder, bounded in bytes and age."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch

from rag_accel.errors import ChunkFileError
from rag_accel.kv.entry import ChunkLabel, KeyValues
from rag_accel.kv.files import ChunkTag, read_chunk, read_header, write_chunk
from rag_accel.kv.folder import ChunkFolder
from rag_accel.system.files import replaced_file


@dataclass(slots=True)
class DiskCounts:
    """Failures of a disk in this process.

    Args:
        refused: files that could not be used, by ``ChunkFileError.reason``.
        dropped: states that could not be written, as when the disk is full.
    """

    refused: dict[str, int] = field(default_factory=dict[str, int])
    dropped: int = 0


class DiskStore:
    """The states of one model in a folder. Used by one thread at a time; other processes may write.

    Of all files, of any model, the least recently used go first.

    Args:
        path: of the folder, made with mode 0700 where it is missing.
        limit_bytes: most bytes of its files.
        model: identifies the weights and how states are computed.
        dtype: of keys and values.
        max_age_s: older states are not used and removed; None for any age.
        now: seconds since 1970.

    Raises:
        ConfigError: the folder is a link, another user's, or open to others.
        OSError: it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit_bytes: int,
        model: str,
        dtype: torch.dtype,
        max_age_s: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.folder = ChunkFolder(path)
        self.counts = DiskCounts()
        self._limit_bytes = limit_bytes
        self._model = model
        self._dtype = dtype
        self._max_age_s = max_age_s
        self._now = now
        self._held_bytes = 0
        self._sweep()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of all files, as they were when this process wrote last."""
        return self._held_bytes

    def has_room(self, nbytes: int) -> bool:
        """Tell whether so many bytes would have had room then without an eviction."""
        return self._held_bytes + nbytes <= self._limit_bytes

    def find(self, key: bytes) -> KeyValues | None:
        """Return the state that a key was linked to last, or that under itself; count it as used.

        A file that cannot be used is counted and removed.
        """
        name = self.folder.name(key)
        with contextlib.suppress(OSError):  # a disk that fails
            target = self.folder.referred(name)
            if target is not None and (state := self._find(target)) is not None:
                return state
        return self._find(name)

    def link(self, key: bytes, target: bytes) -> None:
        """Have a key find the state under another one from now on.

        Args:
            key: of a text's state behind others (``ChunkSource.behind_others``).
            target: of the state to use.

        Raises:
            OSError: it cannot be written.
        """
        name, wanted = self.folder.name(key), self.folder.name(target)
        if self.folder.referred(name) != wanted:
            with self.folder.locked():
                self.folder.refer(name, wanted)

    def _find(self, name: str) -> KeyValues | None:
        path = self.folder.path_of(name)
        try:
            file = self.folder.open(path)
            if file is None:
                return None
            with file:
                state, tag = self._read(file, name)
                if self._is_too_old(tag.written):
                    self.folder.remove(path)
                    return None
                self._touch(file.fileno())
                return state
        except ChunkFileError as error:
            self._refuse(error.reason)
            self.folder.remove(path)
        except (OSError, MemoryError):  # a disk that fails
            self._refuse("unreadable")
        return None

    def has(self, key: bytes) -> bool:
        """Tell whether there is a file of a key, which may not be as it should be."""
        return self.folder.has_file(self.folder.name(key))

    def forget(self, labels: Collection[tuple[str, str]]) -> None:
        """Remove the files of texts.

        Args:
            labels: digests of namespace and text, as ``ChunkFolder`` makes them.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder.purge(
            lambda header: any((header.tag.namespace, text) in labels for text in header.tag.texts)
        )

    def kept_bytes(self, key: bytes) -> int:
        """Return the bytes of a key's file, and count it as used; 0 where it is of no use.

        Its tensors are not read.
        """
        name = self.folder.name(key)
        try:
            file = self.folder.open(self.folder.path_of(name))
            if file is None:
                return 0
            with file:
                size = os.fstat(file.fileno()).st_size
                header = read_header(file, size)
                tag = header.tag
                is_own = (tag.name, tag.model, header.dtype) == (name, self._model, self._dtype)
                if not is_own or self._is_too_old(tag.written):
                    return 0
                self._touch(file.fileno())
                return size
        except (ChunkFileError, OSError):
            return 0

    def put(self, key: bytes, state: KeyValues, label: ChunkLabel) -> bool:
        """Keep a state; a state already under its key stays.

        Return False where anything was purged since it was encoded, and, which is counted, where it
        has no room or cannot be written.
        """
        name = self.folder.name(key)
        path = self.folder.path_of(name)
        tag = ChunkTag(
            name,
            self._model,
            self.folder.namespace_digest(label.namespace),
            self.folder.text_digest(label.text),
            state.position,
            self._now(),
            " ".join(sorted(label.seen)),
        )
        try:
            with self.folder.locked():
                if label.purges is not None and label.purges != self.folder.purges:
                    return False
                return self._write(path, state, tag)
        except OSError:  # a full disk among others
            self.counts.dropped += 1
            return False

    def _write(self, path: Path, state: KeyValues, tag: ChunkTag) -> bool:
        self.folder.remove_left()
        if path.is_file() and not path.is_symlink():
            return True
        if not self._make_room(state.nbytes):
            self.counts.dropped += 1
            return False
        with replaced_file(path) as file:
            write_chunk(file, state, tag, self.folder.secret)
        size = path.stat().st_size
        os.utime(path, (self._now(), self._now()))
        self._held_bytes += size
        self._make_room(0)  # the header came on top
        return path.exists()

    def _make_room(self, nbytes: int) -> bool:
        files = self.folder.files()
        self._held_bytes = sum(file.size for file in files)
        if nbytes > self._limit_bytes:
            return False
        for file in files:
            if self.has_room(nbytes):
                break
            if self.folder.remove(file.path):
                self._held_bytes -= file.size
        return self.has_room(nbytes)

    def _sweep(self) -> None:
        """Remove files that are too old or beyond the limit."""
        with self.folder.locked():
            self.folder.remove_left()
            if self._max_age_s is not None:
                for file, header in self.folder.headers():
                    if header is not None and self._is_too_old(header.tag.written):
                        self.folder.remove(file.path)
            self._make_room(0)
            self.folder.remove_dangling()

    def _read(self, file: BinaryIO, name: str) -> tuple[KeyValues, ChunkTag]:
        size = os.fstat(file.fileno()).st_size
        return read_chunk(
            file,
            size,
            name=name,
            model=self._model,
            dtype=self._dtype,
            secret=self.folder.secret,
        )

    def _is_too_old(self, written: float) -> bool:
        return self._max_age_s is not None and self._now() - written > self._max_age_s

    def _touch(self, descriptor: int) -> None:
        with contextlib.suppress(OSError, TypeError, NotImplementedError):
            os.utime(descriptor, (self._now(), self._now()))

    def _refuse(self, reason: str) -> None:
        self.counts.refused[reason] = self.counts.refused.get(reason, 0) + 1
