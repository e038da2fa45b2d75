"""Results of checks of ``kv_reuse="fused"`` by model, kept in a folder of states.

The file is keyed by the folder's secret, as files of states are: one that was copied from another
folder, edited, or written for another model is not trusted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_accel.errors import ChunkFileError, ConfigError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.system.files import replaced_file, user_cache

FORMAT = "rag_accel.kv_check"
#: Rises with every change in the computation of fused prompts, to which old results do not apply.
VERSION = 1
FILE_BYTES = 1 << 16
_FOLDER = "kv_checks"
_SUFFIX = ".check"
_NAME = re.compile(r"[0-9a-f]{64}\.check")


@dataclass(frozen=True, slots=True)
class ReuseCheckResult:
    """The result of a check.

    Args:
        model: identifies the weights and how states are computed.
        name: of the model.
        target: the requested agreement.
        ratio: the smallest that meets it; None if fused does not pay on this model.
        top1: agreement at that ratio; at the largest one below 0.5, if none meets the target.
        top1_error: its standard error.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
    """

    model: str
    name: str
    target: float
    ratio: float | None
    top1: float
    top1_error: float
    prompts: int
    tokens: int
    written: float
    versions: Mapping[str, str]

    def passes(self, ratio: float) -> bool:
        """Tell whether recomputing this share is enough."""
        return self.ratio is not None and self.ratio <= ratio


def default_folder() -> Path:
    """Return the folder of results if none is named."""
    return user_cache() / _FOLDER


def write_verdict(path: Path, verdict: ReuseCheckResult) -> Path:
    """Write a result to a folder, whole or not at all, and return its file.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be written.
    """
    folder = ChunkFolder(path)
    said = {"format": FORMAT, "version": VERSION, **asdict(verdict)}
    file = _file_of(folder, verdict.model)
    sealed = {**said, "checksum": _checksum(folder, said)}
    with folder.locked(), replaced_file(file) as opened:
        opened.write(json.dumps(sealed, indent=2).encode())
    return file


def read_verdict(path: Path, model: str) -> ReuseCheckResult | None:
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
    file = folder.open(_file_of(folder, model))
    if file is None:
        return None
    with file:
        content = file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        raise _refused("damaged", f"more than {FILE_BYTES} bytes", "a verdict")
    try:
        return _parsed(folder, json.loads(content), model)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refused("damaged", type(error).__name__, "a verdict") from error


def find_verdict(model: Callable[[], str], folders: Iterable[Path]) -> ReuseCheckResult | None:
    """Return the first result that can be trusted; None where there is none.

    Args:
        model: returns the model's identity; slow, so called only if there is any result.
        folders: where to search.
    """
    for path in folders:
        with suppress(ChunkFileError, ConfigError, OSError):
            if not any(_NAME.fullmatch(name) for name in os.listdir(path)):
                continue
            found = read_verdict(path, model())
            if found is not None:
                return found
    return None


def _file_of(folder: ChunkFolder, model: str) -> Path:
    return folder.path / f"{folder.name(b'check ' + model.encode())}{_SUFFIX}"


def _parsed(folder: ChunkFolder, said: dict[str, Any], model: str) -> ReuseCheckResult:
    checksum = said.pop("checksum")
    if said["format"] != FORMAT:
        raise _refused("foreign", repr(said["format"])[:40], FORMAT)
    if said["version"] != VERSION:
        reason = "newer" if said["version"] > VERSION else "older"
        raise _refused(reason, f"version {said['version']}", str(VERSION))
    if said["model"] != model:
        raise _refused("foreign", f"model {str(said['model'])[:12]}", model[:12])
    if not hmac.compare_digest(str(checksum), _checksum(folder, said)):
        raise _refused("damaged", "another checksum", "that of what was written")
    del said["format"], said["version"]
    verdict = ReuseCheckResult(**said)
    numbers = (verdict.target, verdict.ratio or 0.0, verdict.top1, verdict.top1_error)
    if not all(map(math.isfinite, numbers)):
        raise ValueError("numbers out of range")
    return verdict


def _checksum(folder: ChunkFolder, said: Mapping[str, Any]) -> str:
    content = json.dumps(said, sort_keys=True).encode()
    return hmac.new(folder.secret, b"check\0" + content, hashlib.sha256).hexdigest()


def _refused(reason: str, found: object, valid: str) -> ChunkFileError:
    what = "the verdict of a check cannot be used"
    return ChunkFileError(what, reason=reason, found=found, valid=valid)
