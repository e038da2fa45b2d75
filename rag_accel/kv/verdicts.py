"""Results of checks of a model, in files of a folder of states.

A file is keyed by the folder's secret, as files of states are: one that was copied from another
folder, edited, or written for another model is not trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rag_accel.errors import ChunkFileError, ConfigError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.system.files import replaced_file, user_cache

FILE_BYTES = 1 << 16
_FOLDER = "kv_checks"
_SUFFIX = ".check"
_NAME = re.compile(r"[0-9a-f]{64}\.check")


class ModelResult(Protocol):
    """A result of a check of a model: a dataclass of values of JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> str:
        """Return the identity of the checked model."""
        ...


Result = TypeVar("Result", bound=ModelResult)


@dataclass(frozen=True, slots=True)
class VerdictKind(Generic[Result]):
    """A kind of results: how they are written to a folder, read and found.

    Args:
        format: stands in its files.
        version: of what was checked; results of another one are not used.
        purpose: stands before the model's identity in the names of files.
        parse: makes a result of its fields by name; what it raises on others counts as damage.
    """

    format: str
    version: int
    purpose: bytes
    parse: Callable[[dict[str, Any]], Result]

    def write(self, path: Path, result: Result) -> Path:
        """Write a result to a folder, whole or not at all, and return its file.

        Raises:
            ConfigError: the folder cannot be used, see ``ChunkFolder``.
            OSError: it cannot be written.
        """
        folder = ChunkFolder(path)
        said = {"format": self.format, "version": self.version, **asdict(result)}
        file = self._file(folder, result.model)
        sealed = {**said, "checksum": _checksum(folder, said)}
        with folder.locked(), replaced_file(file) as opened:
            opened.write(json.dumps(sealed, indent=2).encode())
        return file

    def read(self, path: Path, model: str) -> Result | None:
        """Return the result of a model in a folder; None where there is none.

        Args:
            path: of the folder.
            model: the model's identity.

        Raises:
            ChunkFileError: the file is damaged, foreign or of another version.
            ConfigError: the folder cannot be used, see ``ChunkFolder``.
            OSError: it cannot be read.
        """
        folder = ChunkFolder(path, create=False)
        file = folder.open(self._file(folder, model))
        if file is None:
            return None
        with file:
            content = file.read(FILE_BYTES + 1)
        if len(content) > FILE_BYTES:
            raise _refused("damaged", f"more than {FILE_BYTES} bytes", "a verdict")
        try:
            said = json.loads(content)
            self._check(folder, said, model)
            return self.parse(said)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _refused("damaged", type(error).__name__, "a verdict") from error

    def find(self, model: Callable[[], str], folders: Iterable[Path]) -> Result | None:
        """Return the first result that can be trusted; None where there is none.

        Args:
            model: returns the model's identity; slow, so called only if there is any result.
            folders: where to search.
        """
        for path in folders:
            with suppress(ChunkFileError, ConfigError, OSError):
                if not any(_NAME.fullmatch(name) for name in os.listdir(path)):
                    continue
                found = self.read(path, model())
                if found is not None:
                    return found
        return None

    def _file(self, folder: ChunkFolder, model: str) -> Path:
        return folder.path / f"{folder.name(self.purpose + model.encode())}{_SUFFIX}"

    def _check(self, folder: ChunkFolder, said: dict[str, Any], model: str) -> None:
        """Check what a file says, and take out of it all that is not the result."""
        checksum = said.pop("checksum")
        if said["format"] != self.format:
            raise _refused("foreign", repr(said["format"])[:40], self.format)
        if said["version"] != self.version:
            reason = "newer" if said["version"] > self.version else "older"
            raise _refused(reason, f"version {said['version']}", str(self.version))
        if said["model"] != model:
            raise _refused("foreign", f"model {str(said['model'])[:12]}", model[:12])
        if not hmac.compare_digest(str(checksum), _checksum(folder, said)):
            raise _refused("damaged", "another checksum", "that of what was written")
        del said["format"], said["version"]


def default_folder() -> Path:
    """Return the folder of results if none is named."""
    return user_cache() / _FOLDER


def result_folders(kv_folder: str | Path | None) -> list[Path]:
    """Return the folders to search for a result: that of states if there is one, and the default.

    Args:
        kv_folder: of the states.
    """
    named = [] if kv_folder is None else [Path(kv_folder).expanduser()]
    return [*named, default_folder()]


def _checksum(folder: ChunkFolder, said: Mapping[str, Any]) -> str:
    content = json.dumps(said, sort_keys=True).encode()
    return hmac.new(folder.secret, b"check\0" + content, hashlib.sha256).hexdigest()


def _refused(reason: str, found: object, valid: str) -> ChunkFileError:
    what = "the verdict of a check cannot be used"
    return ChunkFileError(what, reason=reason, found=found, valid=valid)
