"""Write files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of ``path`` in one step at the end.

    It is written beside the target, flushed to disk and renamed, with mode 0600. Until then, and
    where the block raises, what is there stays untouched; of several writers the last one wins. A
    process killed meanwhile leaves a hidden ``.NAME.*.tmp`` beside the target.

    Raises:
        OSError: the file cannot be written.
    """
    # mkstemp creates a file that only its owner may read and write.
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # interrupted right after the rename
            os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    # Makes the rename itself durable. Systems that cannot open a directory have no such call.
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
