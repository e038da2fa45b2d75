"""A folder of texts' attention states, of one user and shared by that user's processes."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rag_accel.errors import ChunkFileError, ConfigError
from rag_accel.kv.entry import Purges
from rag_accel.kv.files import VERSION, ChunkHeader, read_header
from rag_accel.system.files import locked_file, replaced_file

SECRET_BYTES = 32
_SECRET = ".secret"
_LOCK = ".lock"
_PURGED = ".purged"
_SUFFIX = ".kv"
_REFERENCE = ".ref"
_NAME = re.compile(r"[0-9a-f]{64}(\.[a-z]+)")
_REFERENCES = re.compile(r"[0-9a-f]{64}\.ref")
_REFERENCE_BYTES = 128
_LEFT = re.compile(r"\..*\.tmp")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: so that a named pipe in a file's place is seen to be none, and not waited for
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A file of the folder as the file system describes it.

    Args:
        path: where it is.
        size: in bytes.
        used: when it was used last, in seconds since 1970.
    """

    path: Path
    size: int
    used: float


class ChunkFolder:
    """The files of a folder, their names and digests. Several processes may use one.

    The folder is made with mode 0700 where it is missing. Names of files and digests of texts are
    keyed by a secret in it, so that a copy of a listing tells nothing.

    Args:
        path: of the folder.
        create: whether to make it.

    Raises:
        ConfigError: it is missing and not to be made, a link, of another user, or open to others.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path.absolute()
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        self._check(create)
        self.secret = self._read_secret(create)

    def name(self, key: bytes) -> str:
        """Return the name of a key's state in this version of the format."""
        return self._digest(b"key", VERSION.to_bytes(4, "little") + key)

    def text_digest(self, text: str) -> str:
        """Return the keyed digest of a text, white space around it left out."""
        return self._digest(b"text", text.strip().encode("utf-8", "surrogatepass"))

    def text_digests(self, texts: Iterable[str], namespace: str) -> frozenset[str]:
        """Return the keyed digests of texts; those of a namespace differ by its own alone."""
        return frozenset(map(self.text_digest, texts))

    def namespace_digest(self, namespace: str) -> str:
        """Return the keyed digest of a tenant's name."""
        return self._digest(b"namespace", namespace.encode("utf-8", "surrogatepass"))

    def path_of(self, name: str) -> Path:
        return self.path / f"{name}{_SUFFIX}"

    def open(self, path: Path) -> BinaryIO | None:
        """Return an open file of the folder; None unless it is the user's own and no link.

        Raises:
            OSError: it cannot be opened for another reason.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | _NO_LINK | _NO_WAIT)
        except FileNotFoundError:
            return None
        except OSError:
            if path.is_symlink():
                return None
            raise
        if not _is_own_file(os.fstat(descriptor)):
            os.close(descriptor)
            return None
        return os.fdopen(descriptor, "rb")

    def refer(self, name: str, target: str) -> None:
        """Make a name refer to the state of another one.

        Raises:
            OSError: it cannot be written.
        """
        with replaced_file(self.path / f"{name}{_REFERENCE}") as file:
            file.write((target + self._seal(name, target)).encode())

    def referred(self, name: str) -> str | None:
        """Return the name that this one refers to, if any.

        Raises:
            OSError: it cannot be read.
        """
        file = self.open(self.path / f"{name}{_REFERENCE}")
        if file is None:
            return None
        with file:
            content = file.read(_REFERENCE_BYTES + 1).decode("ascii", "replace")
        target, seal = content[:64], content[64:]
        is_own = hmac.compare_digest(seal.encode(), self._seal(name, target).encode())
        return target if is_own else None

    def remove_dangling(self) -> None:
        """Remove references to states that are gone. Called with the folder locked."""
        with contextlib.suppress(OSError):
            for entry in os.listdir(self.path):
                if _REFERENCES.fullmatch(entry) is None:
                    continue
                target = self.referred(entry.removesuffix(_REFERENCE))
                if target is None or not self.path_of(target).exists():
                    self.remove(self.path / entry)

    def files(self, suffix: str = _SUFFIX) -> list[ChunkFile]:
        """Return the files of states, or of another suffix, the least recently used first.

        Raises:
            OSError: the folder cannot be read.
        """
        found: list[ChunkFile] = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = _NAME.fullmatch(entry.name)
                if name is None or name[1] != suffix:
                    continue
                with contextlib.suppress(OSError):  # gone meanwhile
                    seen = entry.stat(follow_symlinks=False)
                    found.append(ChunkFile(Path(entry.path), seen.st_size, seen.st_mtime))
        return sorted(found, key=lambda file: (file.used, file.path.name))

    def headers(self) -> Iterator[tuple[ChunkFile, ChunkHeader | None]]:
        """Yield each file with its header; None for one that is not as it should be."""
        for file in self.files():
            yield file, self._header(file)

    def remove(self, path: Path) -> bool:
        """Remove a file; tell whether it was there."""
        try:
            os.unlink(path)
        except OSError:  # gone meanwhile, or not a file: it is never read either
            return False
        return True

    def purge(self, is_meant: Callable[[ChunkHeader], bool]) -> int:
        """Remove the files that are meant, and unreadable ones; return how many.

        The texts of unreadable files are unknown, and nothing ever uses them. Processes that use
        the folder forget the states of removed files in memory before they use it again.

        Raises:
            OSError: the folder cannot be written.
        """
        removed = 0
        with self.locked():
            try:
                for file, header in self.headers():
                    if header is None or is_meant(header):
                        removed += self.remove(file.path)
                self.remove_left()
                self.remove_dangling()
            finally:  # also of some files only
                with replaced_file(self.path / _PURGED) as note:
                    note.write(secrets.token_bytes(8))
        return removed

    @property
    def purges(self) -> Purges:
        """Return the state of purges, equal only if nothing was purged since; takes some us."""
        try:
            seen = os.lstat(self.path / _PURGED)
        except OSError:
            return ()
        return (seen.st_ino, seen.st_mtime_ns)

    def has_file(self, name: str) -> bool:
        try:
            return stat.S_ISREG(os.lstat(self.path_of(name)).st_mode)
        except OSError:
            return False

    def remove_left(self) -> None:
        """Remove the temporary files of killed writers. Called with the folder locked."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if _LEFT.fullmatch(name):
                    self.remove(self.path / name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing, and from removing, until the block ends.

        The system releases the lock of a process that is killed.

        Raises:
            OSError: the lock's file cannot be made.
        """
        with locked_file(self.path / _LOCK):
            yield

    def _header(self, file: ChunkFile) -> ChunkHeader | None:
        try:
            opened = self.open(file.path)
            if opened is None:
                return None
            with opened:
                return read_header(opened, os.fstat(opened.fileno()).st_size)
        except (OSError, ChunkFileError):
            return None

    def _seal(self, name: str, target: str) -> str:
        return self._digest(b"reference", f"{name} {target}".encode())

    def _digest(self, purpose: bytes, content: bytes) -> str:
        return hmac.new(self.secret, purpose + b"\0" + content, hashlib.sha256).hexdigest()

    def _check(self, create: bool) -> None:
        try:
            seen = os.lstat(self.path)
        except FileNotFoundError:
            if create:  # it was there a moment ago
                raise self._unfit("it is missing") from None
            raise ConfigError(
                "there is no such folder of kept texts",
                where=str(self.path),
                valid="the kv_folder of a program that has run",
                hint="check the path; rag-accel cache fill makes a folder",
            ) from None
        if not stat.S_ISDIR(seen.st_mode):
            raise self._unfit("a link or a file")
        if hasattr(os, "geteuid") and seen.st_uid != os.geteuid():
            raise self._unfit("another user's folder")
        if os.name == "posix" and seen.st_mode & 0o077:
            raise self._unfit(f"mode {stat.S_IMODE(seen.st_mode):04o}")

    def _unfit(self, found: str) -> ConfigError:
        return ConfigError(
            "no files can be kept in this folder",
            where=str(self.path),
            found=found,
            valid="a folder of your own with mode 0700",
            hint="remove it, or name one that does not exist yet: it is made",
        )

    def _read_secret(self, create: bool) -> bytes:
        path = self.path / _SECRET
        if create and not path.exists():
            with self.locked():  # so that leftovers of a killed process are known as such
                self._make_secret(path)
        file = self.open(path)
        if file is None:
            raise self._unfit("no secret of its own in it")
        with file:
            secret = file.read(SECRET_BYTES + 1)
        if len(secret) != SECRET_BYTES:
            raise self._unfit("a damaged secret in it")
        return secret

    def _make_secret(self, path: Path) -> None:
        descriptor, temporary = tempfile.mkstemp(".tmp", f"{_SECRET}.", self.path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces the file of another process.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)


def _is_own_file(seen: os.stat_result) -> bool:
    own = not hasattr(os, "geteuid") or seen.st_uid == os.geteuid()
    return own and stat.S_ISREG(seen.st_mode)
