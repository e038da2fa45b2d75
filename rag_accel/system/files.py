"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

fcntl: Any
try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None

_SUFFIX = ".rag.tmp"
_RANDOM = "[a-z0-9_]{8}"  # what mkstemp puts in between
_AGAIN_S = 0.01  # between tries to take a lock


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the place of ``path`` in one step at the end.

    It is written next to the target, flushed to disk and renamed, with mode 0600. Until then, and
    where the block raises, what is there stays untouched; of several writers the last one wins. A
    process killed meanwhile leaves a hidden ``.NAME.*.tmp`` next to the target, which the next
    writer of ``path`` removes.

    Raises:
        OSError: the file cannot be written.
    """
    _remove_left(path)
    descriptor, temporary = _temporary(path)
    locked = os.dup(descriptor)  # keeps the lock until the file has its name
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
    finally:
        os.close(locked)
    _sync_directory(path.parent)


def _temporary(path: Path) -> tuple[int, str]:
    """Make and lock a file that only its owner may read and write; return it open."""
    while True:
        descriptor, temporary = tempfile.mkstemp(_SUFFIX, f".{path.name}.", path.parent)
        lock_file(descriptor)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # another writer came before the lock and took it for left


def lock_file(descriptor: int) -> None:
    """Wait for the lock of an open file; the system releases it when the process ends."""
    with contextlib.suppress(OSError):  # a file system without locks
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Wait for the lock of a file, which is made, and hold it until the block ends.

    The system releases the lock of a process that is killed.

    Raises:
        OSError: the file cannot be made, or is a link.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        lock_file(descriptor)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held_lock(path: Path, within_s: float) -> Iterator[None]:
    """Hold the lock of a file, which is made; the system releases it when the process ends.

    Raises:
        TimeoutError: another one holds it for longer.
        OSError: the file cannot be written, or its file system has no locks.
    """
    with open(path, "ab") as file:
        if fcntl is None:
            yield
            return
        _lock_within(file, within_s)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not, where a forked child has it open


def _lock_within(file: BinaryIO, within_s: float) -> None:
    given_up_at = time.monotonic() + within_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= given_up_at:
                raise TimeoutError(f"{file.name} is locked for {within_s:g} s") from error
        time.sleep(_AGAIN_S)


def _remove_left(path: Path) -> None:
    """Remove files that writers of ``path`` have left: those that no process holds locked."""
    if fcntl is None:
        return
    left = re.compile(re.escape(f".{path.name}.") + _RANDOM + re.escape(_SUFFIX))
    with contextlib.suppress(OSError):  # making the new file says what is wrong
        for name in os.listdir(path.parent):
            if left.fullmatch(name):
                _remove_unlocked(path.parent / name)


def _remove_unlocked(temporary: Path) -> None:
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or not ours
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temporary)
    except OSError:  # another process writes it
        pass
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    # Makes the rename itself durable. Systems that cannot open a directory have no such call.
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, made first if it is not there: whole or not at all, by one process.

    Others that want it at the same time wait for the one that makes it. A maker that raises or is
    killed leaves no folder under this name; the next one removes its leftovers.

    Args:
        folder: is to exist; its parents are made.
        make: fills a folder given to it; takes long.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    begun = folder.with_name(f".{folder.name}{_SUFFIX}")
    with locked_file(folder.with_name(f".{folder.name}.lock")):
        if not folder.is_dir():
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            try:
                make(begun)
                os.replace(begun, folder)
            except BaseException:
                shutil.rmtree(begun, ignore_errors=True)
                raise
    return folder


def user_cache() -> Path:
    """Return the cache folder of the user: ``$XDG_CACHE_HOME/rag_accel``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "rag_accel"


def model_files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of the files of a folder; nothing for a name on the hub."""
    with contextlib.suppress(OSError):  # whoever loads it says what is wrong
        for entry in sorted(os.scandir(folder.expanduser()), key=lambda file: file.name):
            if entry.name.endswith((".json", ".safetensors", ".jinja", ".model", ".txt")):
                found = entry.stat()
                yield entry.name, found.st_size, found.st_mtime_ns
