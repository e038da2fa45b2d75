"""Small files of a folder, each found by its key and read only as it was written."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rag_accel.kv.folder import ChunkFile, ChunkFolder
from rag_accel.system.files import replaced_file

logger = logging.getLogger("rag_accel.kv")

_SEAL_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """The files of one suffix in a ``ChunkFolder``.

    Names, and the seals at the beginning of the files, are keyed by the folder's secret: a file
    that was edited, or copied from another folder or key, is not used. All methods raise
    ConfigError if the folder cannot be used, see ``ChunkFolder``, and OSError if its files cannot.

    Args:
        folder: returns the path of the folder, which is made by the first file.
        suffix: of the names, with its dot.
        most: how many are kept; the least recently used go first.
    """

    folder: Callable[[], Path]
    suffix: str
    most: int

    def read(self, key: str, max_age_s: float = math.inf) -> bytes | None:
        """Return what was written under a key; None without it, or if it is damaged or older."""
        folder = self._opened()
        return folder and self._content(folder, self._path(folder, key), max_age_s)

    def write(self, key: str, content: bytes) -> None:
        """Write what is kept under a key, whole or not at all."""
        folder = ChunkFolder(self.folder())
        with folder.locked():
            self._write(folder, self._path(folder, key), content)

    def read_or_make(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return what is kept under a key, made first if it is not there.

        One process at a time makes files of a folder. What ``make`` raises is raised, and nothing
        is written then.
        """
        content = self.read(key)
        folder = ChunkFolder(self.folder())
        path = self._path(folder, key)
        if content is None:
            with folder.locked():
                content = self._content(folder, path)  # another process may have made it
                if content is None:
                    if os.path.lexists(path):
                        logger.warning("%s is damaged, and made again", path)
                    content = make()
                    self._write(folder, path, content)
        with suppress(OSError):  # a cache that can only be read has no order of use
            os.utime(path)
        return content

    def entries(self) -> list[tuple[ChunkFile, bytes | None]]:
        """Return the files, the least recently used first, and their contents; None if damaged."""
        folder = self._opened()
        files = folder.files(self.suffix) if folder else []
        return [(file, folder and self._content(folder, file.path)) for file in files]

    def purge(self) -> int:
        """Remove all files; return how many."""
        folder = self._opened()
        return sum(folder.remove(file.path) for file in folder.files(self.suffix)) if folder else 0

    def _opened(self) -> ChunkFolder | None:
        return ChunkFolder(self.folder()) if self.folder().exists() else None

    def _path(self, folder: ChunkFolder, key: str) -> Path:
        return folder.path / f"{folder.name(f'{self.suffix} {key}'.encode())}{self.suffix}"

    def _content(
        self, folder: ChunkFolder, path: Path, max_age_s: float = math.inf
    ) -> bytes | None:
        file = folder.open(path)
        if file is None:
            return None
        with file:
            age_s = abs(time.time() - os.fstat(file.fileno()).st_mtime)
            seal, content = file.read(_SEAL_BYTES), file.read()
        is_own = hmac.compare_digest(seal, _seal(folder, path, content))
        return content if is_own and age_s <= max_age_s else None

    def _write(self, folder: ChunkFolder, path: Path, content: bytes) -> None:
        with replaced_file(path) as file:
            file.write(_seal(folder, path, content) + content)
        for old in folder.files(self.suffix)[: -self.most]:
            folder.remove(old.path)


def _seal(folder: ChunkFolder, path: Path, content: bytes) -> bytes:
    sealed = f"file\0{path.name}\0".encode() + content
    return hmac.digest(folder.secret, sealed, "sha256")
