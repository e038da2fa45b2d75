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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rag_accel.errors import ChunkFileError, ConfigError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.system.files import replaced_file, user_cache

FILE_BYTES = 1 << 16
_FOLDER = "kv_checks"
_SUFFIX = ".check"
_NAME = re.compile(r"[0-9a-f]{64}\.check")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """A kind of results.

    Args:
        format: stands in its files.
        version: of what was checked; results of another one are not used.
        purpose: stands before the model's identity in the names of files.
    """

    format: str
    version: int
    purpose: bytes


def default_folder() -> Path:
    """Return the folder of results if none is named."""
    return user_cache() / _FOLDER


def write_values(path: Path, kind: VerdictKind, values: Mapping[str, Any]) -> Path:
    """Write a result to a folder, whole or not at all, and return its file.

    Args:
        path: of the folder.
        kind: of the result.
        values: of JSON; ``model`` is the identity of the checked one.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be written.
    """
    folder = ChunkFolder(path)
    said = {"format": kind.format, "version": kind.version, **values}
    file = _file_of(folder, kind, values["model"])
    sealed = {**said, "checksum": _checksum(folder, said)}
    with folder.locked(), replaced_file(file) as opened:
        opened.write(json.dumps(sealed, indent=2).encode())
    return file


def read_values(
    path: Path, kind: VerdictKind, model: str, parse: Callable[[dict[str, Any]], Result]
) -> Result | None:
    """Return the result of a model in a folder; None where there is none.

    Args:
        path: of the folder.
        kind: of the result.
        model: the model's identity.
        parse: makes it of its values; what it raises on others counts as damage.

    Raises:
        ChunkFileError: the file is damaged, foreign or of another version.
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be read.
    """
    folder = ChunkFolder(path, create=False)
    file = folder.open(_file_of(folder, kind, model))
    if file is None:
        return None
    with file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise _refused("damaged", f"more than {FILE_BYTES} bytes", "a verdict")
    try:
        said = json.loads(content)
        _check(folder, kind, said, model)
        return parse(said)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refused("damaged", type(error).__name__, "a verdict") from error


def find_result(
    read: Callable[[Path, str], Result | None],
    model: Callable[[], str],
    folders: Iterable[Path],
) -> Result | None:
    """Return the first result that can be trusted; None where there is none.

    Args:
        read: returns that of a model in a folder.
        model: returns the model's identity; slow, so called only if there is any result.
        folders: where to search.
    """
    for path in folders:
        with suppress(ChunkFileError, ConfigError, OSError):
            if not any(_NAME.fullmatch(name) for name in os.listdir(path)):
                continue
            found = read(path, model())
            if found is not None:
                return found
    return None


def _file_of(folder: ChunkFolder, kind: VerdictKind, model: str) -> Path:
    return folder.path / f"{folder.name(kind.purpose + model.encode())}{_SUFFIX}"


def _check(folder: ChunkFolder, kind: VerdictKind, said: dict[str, Any], model: str) -> None:
    """Check what a file says, and take out of it all that is not the result."""
    checksum = said.pop("checksum")
    if said["format"] != kind.format:
        raise _refused("foreign", repr(said["format"])[:40], kind.format)
    if said["version"] != kind.version:
        reason = "newer" if said["version"] > kind.version else "older"
        raise _refused(reason, f"version {said['version']}", str(kind.version))
    if said["model"] != model:
        raise _refused("foreign", f"model {str(said['model'])[:12]}", model[:12])
    if not hmac.compare_digest(str(checksum), _checksum(folder, said)):
        raise _refused("damaged", "another checksum", "that of what was written")
    del said["format"], said["version"]


def _checksum(folder: ChunkFolder, said: Mapping[str, Any]) -> str:
    content = json.dumps(said, sort_keys=True).encode()
    return hmac.new(folder.secret, b"check\0" + content, hashlib.sha256).hexdigest()


def _refused(reason: str, found: object, valid: str) -> ChunkFileError:
    what = "the verdict of a check cannot be used"
    return ChunkFileError(what, reason=reason, found=found, valid=valid)
