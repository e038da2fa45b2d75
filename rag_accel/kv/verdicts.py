"""Verdicts of checks of a model, in files of a folder of states.

A file is keyed by the folder's secret, as files of states are: one that was copied from another
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
from rag_accel.system.doctor import installed_version
from rag_accel.system.files import replaced_file, user_cache

FILE_BYTES = 1 << 16
_FOLDER = "kv_checks"
_SUFFIX = ".check"
_NAME = re.compile(r"[0-9a-f]{64}\.check")


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """The result of a check of another way to compute a model, as it is kept.

    Args:
        model: identifies the weights, how they were rounded if they were, and how states are
            computed.
        name: of the model.
        target: the requested agreement.
        ratio: the smallest share of texts' tokens to compute again that meets it, less two standard
            errors; 0 of a way without such a share that meets it; None if the way does not.
        top1: share of tokens whose most probable one is that of the plain computation, at that
            ratio; at the largest one below 0.5 if none meets the target.
        top1_error: its standard error.
        prompts: how many were compared.
        tokens: most tokens of an answer.
        written: seconds since 1970.
        versions: of the libraries that computed, by name.
        kl: Kullback-Leibler divergence from the plain computation a token, in nats; None where it
            is not kept.
        cosine: the smallest of an embedding model's vector to the model's own; None of another
            model. Of such a model ``top1`` is the share of questions whose nearest text is the
            same, and ``tokens`` is 0.
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
    kl: float | None = None
    cosine: float | None = None

    def passes(self, ratio: float = 0.0) -> bool:
        """Tell whether the way is near enough if this share of texts is computed again."""
        return self.ratio is not None and self.ratio <= ratio


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """The verdicts on one way to compute a model: how they are written, read and found.

    Args:
        variant: the way, as the command names it.
        option: the way, as programs choose it.
        format: stands in its files.
        purpose: stands before the model's identity in the names of files.
        by_ratio: whether files name a ratio, not whether the check was passed and the divergence.
        version: of what was checked, which rises with every change in its computation; verdicts of
            another one are not used.
    """

    variant: str
    option: str
    format: str
    purpose: bytes
    by_ratio: bool = False
    version: int = 1

    def write(self, path: Path, verdict: CheckVerdict) -> Path:
        """Write a verdict to a folder, whole or not at all, and return its file.

        Raises:
            ConfigError: the folder cannot be used, see ``ChunkFolder``.
            OSError: it cannot be written.
        """
        folder = ChunkFolder(path)
        said = {"format": self.format, "version": self.version, **asdict(verdict)}
        said = {name: value for name, value in said.items() if (name, value) != ("cosine", None)}
        if self.by_ratio:
            del said["kl"]
        else:
            said["passed"] = said.pop("ratio") is not None
        file = self._file(folder, verdict.model)
        sealed = {**said, "checksum": _checksum(folder, said)}
        with folder.locked(), replaced_file(file) as opened:
            opened.write(json.dumps(sealed, indent=2).encode())
        return file

    def read(self, path: Path, model: str) -> CheckVerdict | None:
        """Return the verdict on a model in a folder; None where there is none.

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
            return self._parse(said)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _refused("damaged", type(error).__name__, "a verdict") from error

    def find(self, model: Callable[[], str], folders: Iterable[Path]) -> CheckVerdict | None:
        """Return the first verdict that can be trusted; None where there is none.

        Args:
            model: returns the model's identity; slow, so called only if there is any verdict.
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

    def _parse(self, said: dict[str, Any]) -> CheckVerdict:
        """Return the verdict with these fields; what it raises on others counts as damage."""
        if not self.by_ratio:
            if not isinstance(said["passed"], bool):
                raise ValueError("neither passed nor failed")
            said["ratio"] = 0.0 if said.pop("passed") else None
        found = CheckVerdict(**said)
        numbers = (
            *(found.target, found.ratio or 0.0, found.top1, found.top1_error),
            *(found.kl or 0.0, found.cosine or 0.0),
        )
        if not all(map(math.isfinite, numbers)):
            raise ValueError("numbers out of range")
        return found

    def _file(self, folder: ChunkFolder, model: str) -> Path:
        return folder.path / f"{folder.name(self.purpose + model.encode())}{_SUFFIX}"

    def _check(self, folder: ChunkFolder, said: dict[str, Any], model: str) -> None:
        """Check what a file says, and take out of it all that is not the verdict."""
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


FUSED = VerdictKind("fused", 'kv_reuse="fused"', "rag_accel.kv_check", b"check ", by_ratio=True)
DEPENDENCY = VerdictKind(
    "dependency", 'kv_reuse="dependency"', "rag_accel.paths_check", b"paths check "
)
INT8 = VerdictKind("int8", 'weights="int8"', "rag_accel.weights_check", b"weights check ")
EMBEDDING_INT8 = VerdictKind(
    *("embedding-int8", 'embedding_runtime="int8"'),
    *("rag_accel.embedding_check", b"embedding check "),
)


def installed_versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of libraries by name, as verdicts name them."""
    return {name: installed_version(name) or "unknown" for name in libraries}


def default_folder() -> Path:
    """Return the folder of verdicts if none is named."""
    return user_cache() / _FOLDER


def result_folders(kv_folder: str | Path | None) -> list[Path]:
    """Return the folders to search for a verdict: that of states if there is one, and the default.

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
