"""The weights of a model's products in int8, each row with a scale; kept in the user's cache.

A file is a header of JSON behind its length, then scales and rows of each weight, then a digest of
all that, keyed by the folder's secret: a file that was edited, or copied from another folder or
model, is not used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rag_accel.engines.llm.local.model.runner import states_identity
from rag_accel.errors import ConfigError, WeightsFileError
from rag_accel.kv.folder import ChunkFolder
from rag_accel.system.files import replaced_file, user_cache

logger = logging.getLogger("rag_accel.llm")

#: Says how weights and the other factors of products are rounded; it changes with every change of
#: that, also of ``making.INT8_SETTINGS``: states and verdicts of another way do not apply.
RECIPE = "int8, symmetric, a float32 scale a row; other factors by 32 together; 1"
_LARGEST = 127
#: The format of files, and its version.
FORMAT, VERSION = "rag_accel.int8", 1
#: The most bytes of a header.
HEADER_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32
_FOLDER, _SUFFIX = "int8", ".int8"
_NAME = re.compile(r"[0-9a-f]{64}\.int8")


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A weight of a product in int8.

    Args:
        rows: ``[out, in], int8``, of -127 to 127.
        scales: ``[out, 1], float32``, by which the rows are multiplied.
    """

    rows: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Return the bytes of both."""
        return self.rows.nbytes + self.scales.nbytes

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Rows:
        """Return a weight ``[out, in]`` rounded: the largest component of a row becomes 127."""
        wide = weight.detach().float()
        found = wide.abs().amax(dim=1, keepdim=True) / _LARGEST
        scales = torch.where(found == 0, 1.0, found)  # of zeros, and of what is next to them
        return cls((wide / scales).round_().to(torch.int8), scales)

    def widened(self) -> torch.Tensor:
        """Return the weight that the rows stand for: ``[out, in], float32``."""
        return self.rows.float() * self.scales


@dataclass(frozen=True, slots=True)
class Int8Weights:
    """The weights of a model's products in int8.

    Args:
        identity: of what they compute.
        rows: by the names of the weights.
    """

    identity: str
    rows: Mapping[str, Int8Rows]


def product_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a model's products by name; a tied one has that of the look-up."""
    products = {
        id(module.weight): module.weight
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    }
    return {
        name: weight.detach() for name, weight in model.named_parameters() if id(weight) in products
    }


@torch.inference_mode(False)
@torch.no_grad()
def quantised(model: Any) -> dict[str, Int8Rows]:
    """Return the weights of a model's products in int8, by name.

    A table of embeddings that is the output layer's weight, too, is one of them: there is one copy.
    """
    return {name: Int8Rows.of(weight) for name, weight in product_weights(model).items()}


def int8_identity(identity: str) -> str:
    """Return the identity of what int8 weights compute, made of that of the model's states."""
    return hashlib.sha256(f"{RECIPE}\0{identity}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """A file of int8 weights.

    Args:
        path: where it is.
        model: the name of the model it was made of; None if the header cannot be read.
        size: in bytes.
        used: when it was used last, in seconds since 1970.
    """

    path: Path
    model: str | None
    size: int
    used: float


def weights_folder() -> Path:
    """Return the folder of int8 weights, whether it is there or not."""
    return user_cache() / _FOLDER


def int8_weights(model: Any, name: str, limit_bytes: int) -> Int8Weights:
    """Return the int8 weights of a model, read if they are kept, else made and kept.

    Where they cannot be kept or read, they are made; the log says why. Reads all of the model's own
    weights, by which kept ones are known.

    Args:
        model: of transformers.
        name: of the model, for lists.
        limit_bytes: the most bytes of all files together; the least recently used go first.
    """
    identity = int8_identity(states_identity(model))
    if not limit_bytes:
        return Int8Weights(identity, quantised(model))
    try:
        folder = ChunkFolder(weights_folder())
    except (OSError, ConfigError) as error:
        logger.warning("int8 weights are not kept: %s", error)
        return Int8Weights(identity, quantised(model))
    file = folder.path / f"{folder.name(b'int8 ' + identity.encode())}{_SUFFIX}"
    try:
        found = _read(folder, file, model, identity)
    except (OSError, WeightsFileError) as error:
        logger.warning("int8 weights are made again: %s", error)
        found = None
    if found is not None:
        return Int8Weights(identity, found)
    made = quantised(model)
    try:
        _keep(folder, file, made, _header(identity, name), limit_bytes)
    except (OSError, ConfigError) as error:
        logger.warning("int8 weights are not kept: %s", error)
    return Int8Weights(identity, made)


def list_weights() -> list[KeptWeights]:
    """Return the files, the least recently used first.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be read.
    """
    path = weights_folder()
    if not path.exists():
        return []
    folder = ChunkFolder(path, create=False)
    found: list[KeptWeights] = []
    for name in filter(_NAME.fullmatch, os.listdir(path)):
        with suppress(FileNotFoundError):  # gone meanwhile
            seen, model = os.lstat(path / name), None
            with suppress(OSError, WeightsFileError), _opened(folder, path / name) as opened:
                model = str(_read_header(opened)[1]["model"])
            found.append(KeptWeights(path / name, model, seen.st_size, seen.st_mtime))
    return sorted(found, key=lambda kept: (kept.used, kept.path.name))


def purge_weights(model: str | None = None) -> int:
    """Remove the files of a model by name, or all; unreadable ones, too. Return how many.

    Programs that have read them go on with what they read.

    Raises:
        ConfigError: the folder cannot be used, see ``ChunkFolder``.
        OSError: it cannot be written.
    """
    if not weights_folder().exists():
        return 0
    folder = ChunkFolder(weights_folder(), create=False)
    with folder.locked():
        meant = [kept for kept in list_weights() if model is None or kept.model in (None, model)]
        removed = sum(folder.remove(kept.path) for kept in meant)
        folder.remove_left()
    return removed


def _header(identity: str, name: str) -> bytes:
    said = {"format": FORMAT, "version": VERSION, "identity": identity, "model": name}
    encoded = json.dumps(said).encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _keep(
    folder: ChunkFolder,
    file: Path,
    weights: Mapping[str, Int8Rows],
    header: bytes,
    limit_bytes: int,
) -> None:
    """Write a file, whole or not at all, and remove those for which there is no room then."""
    size = len(header) + sum(weight.nbytes for weight in weights.values()) + _DIGEST_BYTES
    if size > limit_bytes:
        logger.info("int8 weights are not kept: %d bytes, of %d at most", size, limit_bytes)
        return
    with folder.locked():
        folder.remove_left()
        others = [kept for kept in list_weights() if kept.path != file]
        excess = size + sum(kept.size for kept in others) - limit_bytes
        for kept in others:
            if excess <= 0:
                break
            folder.remove(kept.path)
            excess -= kept.size
        digest = _digest(folder)
        with replaced_file(file) as opened:
            for part in (header, *_parts(weights)):
                digest.update(part)
                opened.write(part)
            opened.write(digest.digest())


def _opened(folder: ChunkFolder, file: Path) -> BinaryIO:
    """Return an open file of the folder.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be opened.
        WeightsFileError: it is not the user's own.
    """
    opened = folder.open(file)
    if opened is None and os.path.lexists(file):
        raise _refused("foreign", "a link, or another user's file", "a file of your own")
    if opened is None:
        raise FileNotFoundError(file)
    return opened


def _read(folder: ChunkFolder, file: Path, model: Any, identity: str) -> dict[str, Int8Rows] | None:
    """Return what a file holds; None where there is none.

    Raises:
        WeightsFileError: it is not what was written for this model.
        OSError: it cannot be read.
    """
    if not os.path.lexists(file):
        return None
    with _opened(folder, file) as opened:
        header, said = _read_header(opened)
        if said["identity"] != identity:
            raise _refused("foreign", "the weights of another model", "those of this one")
        weights = {
            name: Int8Rows(
                torch.empty(weight.shape, dtype=torch.int8),
                torch.empty((len(weight), 1), dtype=torch.float32),
            )
            for name, weight in product_weights(model).items()
        }
        size = os.fstat(opened.fileno()).st_size
        valid = len(header) + sum(weight.nbytes for weight in weights.values()) + _DIGEST_BYTES
        if size != valid:
            raise _refused("damaged", f"{size} bytes", f"{valid} bytes")
        digest = _digest(folder)
        digest.update(header)
        for part in _parts(weights):
            opened.readinto(part)  # type: ignore[attr-defined]
            digest.update(part)
        if not hmac.compare_digest(opened.read(_DIGEST_BYTES), digest.digest()):
            raise _refused("damaged", "another checksum", "that of what was written")
    with suppress(OSError):  # a folder that can only be read has no order of use
        os.utime(file)
    return weights


def _read_header(opened: BinaryIO) -> tuple[bytes, dict[str, Any]]:
    """Return the header of a file as it stands there, and what it says."""
    first = opened.read(_LENGTH.size)
    length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else math.inf
    if length > HEADER_BYTES:
        raise _refused("damaged", "no header", f"one of at most {HEADER_BYTES} bytes")
    encoded = opened.read(int(length))
    try:
        said = json.loads(encoded)
        found = {name: said[name] for name in ("format", "version", "identity", "model")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _refused("damaged", type(error).__name__, "a header of int8 weights") from error
    if found["format"] != FORMAT:
        raise _refused("foreign", repr(found["format"])[:40], FORMAT)
    if found["version"] != VERSION:
        raise _refused("newer", f"version {str(found['version'])[:20]}", str(VERSION))
    return first + encoded, found


def _parts(weights: Mapping[str, Int8Rows]) -> Iterator[memoryview]:
    """Yield the bytes of scales and rows of each weight, in their memory."""
    for weight in weights.values():
        for tensor in (weight.scales, weight.rows):
            octets: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            yield memoryview(octets)


def _digest(folder: ChunkFolder) -> Any:
    return hashlib.blake2b(key=folder.secret, digest_size=_DIGEST_BYTES, person=b"int8")


def _refused(reason: str, found: object, valid: str) -> WeightsFileError:
    what = "kept int8 weights cannot be used"
    return WeightsFileError(what, reason=reason, found=found, valid=valid)
