"""The file of one text's attention state: safetensors whose header is checked before it is read.

A file holds ``keys`` and ``values``, ``[layer, kv head, token, dim]`` of one dtype, and no text: of
the text and its namespace there are digests that only the folder's secret makes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import torch

from rag_accel.errors import ChunkFileError
from rag_accel.kv.entry import KeyValues

FORMAT = "rag_accel.kv"
#: The second has a checksum that takes 0.6 ms a megabyte instead of 1.5, where processors have
#: instructions for SHA-256: reading a file is mostly that.
VERSION = 2
#: The most bytes of a header: two tensors and a handful of short values.
HEADER_BYTES = 1 << 14
_LENGTH = struct.Struct("<Q")
_TENSORS = ("keys", "values")
_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ChunkTag:
    """Metadata of the state in a file.

    Args:
        name: the name that the folder gives the state's key.
        model: identifies the weights and how the state was computed.
        namespace: the keyed digest of the tenant's name.
        text: the keyed digest of the text.
        position: that of the first token.
        written: seconds since 1970.
        neighbours: the keyed digests of texts that the state has seen, too, joined by spaces.
    """

    name: str
    model: str
    namespace: str
    text: str
    position: int
    written: float
    neighbours: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the keyed digests of all texts that the state has seen."""
        return (self.text, *self.neighbours.split())


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of a file, with nothing read behind it.

    Args:
        tag: metadata of the state.
        dtype: of both tensors.
        shape: of each: layers, key and value heads, tokens, components.
        checksum: of everything else, in hexadecimal digits.
    """

    tag: ChunkTag
    dtype: torch.dtype
    shape: tuple[int, ...]
    checksum: str

    @property
    def tensor_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_chunk(file: BinaryIO, state: KeyValues, tag: ChunkTag, secret: bytes) -> None:
    """Write a file.

    Args:
        file: open for writing, at its beginning.
        state: two tensors of one shape and floating dtype.
        tag: metadata of the state.
        secret: the folder's; without it nobody can make a file that is accepted.

    Raises:
        OSError: it cannot be written.
    """
    keys, values = (tensor.detach().cpu().contiguous() for tensor in (state.keys, state.values))
    parts = [_octets(tensor.reshape(-1).view(torch.uint8)) for tensor in (keys, values)]
    dtype, shape = _NAMES[keys.dtype], list(keys.shape)
    size = parts[0].nbytes
    written = _texts(tag)
    digest = _checksum(secret, written, dtype, shape, parts)
    header: dict[str, Any] = {"__metadata__": {**written, "checksum": digest}}
    for at, name in enumerate(_TENSORS):
        offsets = [at * size, (at + 1) * size]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors begin at a multiple of eight
    for part in (_LENGTH.pack(len(encoded)), encoded, *parts):
        file.write(part)


def read_header(file: BinaryIO, size: int) -> ChunkHeader:
    """Return the header of a file with exactly its tensors behind it.

    Args:
        file: open for reading, at its beginning; left at its tensors.
        size: of the whole file, in bytes.

    Raises:
        ChunkFileError: the file is damaged, truncated, of another format or version.
        OSError: it cannot be read.
    """
    first = file.read(_LENGTH.size)
    if len(first) < _LENGTH.size:
        raise _refused("truncated", f"{len(first)} bytes", "a header")
    (length,) = _LENGTH.unpack(first)
    if length > HEADER_BYTES:
        raise _refused("damaged", f"a header of {length} bytes", f"at most {HEADER_BYTES}")
    encoded = file.read(length)
    if len(encoded) < length:
        raise _refused("truncated", f"{len(encoded)} bytes", f"a header of {length}")
    try:
        header = _parsed(json.loads(encoded))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _refused("damaged", type(error).__name__, "a header of keys and values") from error
    expected = _LENGTH.size + length + 2 * header.tensor_bytes
    if size != expected:
        reason = "truncated" if size < expected else "damaged"
        raise _refused(reason, f"{size} bytes", f"{expected}")
    return header


def read_chunk(
    file: BinaryIO, size: int, *, name: str, model: str, dtype: torch.dtype, secret: bytes
) -> tuple[KeyValues, ChunkTag]:
    """Return the state in a file and its metadata.

    Args:
        file: open for reading, at its beginning.
        size: of the whole file, in bytes.
        name: expected of the state.
        model: expected of it.
        dtype: of keys and values.
        secret: the folder's.

    Raises:
        ChunkFileError: it is not the state of this text and model, or not as it was written.
        OSError: it cannot be read.
    """
    header = read_header(file, size)
    tag = header.tag
    for what, found, valid in (("name", tag.name, name), ("model", tag.model, model)):
        if found != valid:
            raise _refused("foreign", f"{what} {found}", valid)
    if header.dtype != dtype:
        raise _refused("dtype", header.dtype, str(dtype))
    both = torch.empty(2 * header.tensor_bytes, dtype=torch.uint8)
    taken = _read_into(file, _octets(both))
    if taken < both.nbytes:
        raise _refused("truncated", f"{taken} bytes", f"{both.nbytes}")
    parts = both.split(max(1, header.tensor_bytes))
    views = [_octets(part) for part in parts]
    found = _checksum(secret, _texts(tag), _NAMES[dtype], list(header.shape), views)
    if found != header.checksum:
        raise _refused("damaged", "another checksum", "that of what was written")
    keys, values = (part.view(dtype).view(header.shape) for part in parts)
    return KeyValues(keys, values, tag.position, frozenset(tag.neighbours.split())), tag


def _parsed(header: Any) -> ChunkHeader:
    metadata = header["__metadata__"]
    if metadata["format"] != FORMAT:
        raise _refused("foreign", repr(metadata["format"])[:40], FORMAT)
    version = int(metadata["version"])
    if version != VERSION:
        reason = "newer" if version > VERSION else "older"
        raise _refused(reason, f"version {version}", f"{VERSION}")
    tag = ChunkTag(
        *(str(metadata[name]) for name in ("name", "model", "namespace", "text")),
        position=int(metadata["position"]),
        written=float(metadata["written"]),
        neighbours=str(metadata.get("neighbours", "")),
    )
    if not math.isfinite(tag.written) or not 0 <= tag.position < 1 << 31:
        raise ValueError("numbers out of range")
    keys, values = (header[name] for name in _TENSORS)
    shape = tuple(keys["shape"])
    if len(header) != 3 or len(shape) != 4 or not all(map(_is_count, shape)):
        raise ValueError("another shape")
    made = ChunkHeader(tag, _DTYPES[keys["dtype"]], shape, str(metadata["checksum"]))
    size = made.tensor_bytes
    alike = values["shape"] == keys["shape"] and values["dtype"] == keys["dtype"]
    if not alike or [keys["data_offsets"], values["data_offsets"]] != [[0, size], [size, 2 * size]]:
        raise ValueError("another layout")
    return made


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def _texts(tag: ChunkTag) -> dict[str, str]:
    values = {name: str(value) for name, value in asdict(tag).items()}
    if not tag.neighbours:
        del values["neighbours"]
    return {"format": FORMAT, "version": str(VERSION), **values}


def _checksum(
    secret: bytes, texts: Mapping[str, str], dtype: str, shape: list[int], parts: list[memoryview]
) -> str:
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    said = json.dumps([sorted(texts.items()), dtype, shape]).encode()
    for part in (len(said).to_bytes(8, "little"), said, *parts):
        digest.update(part)
    return digest.hexdigest()


def _octets(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array)


def _read_into(file: BinaryIO, target: memoryview) -> int:
    taken = 0
    while taken < len(target):
        count = file.readinto(target[taken:])  # type: ignore[attr-defined]
        if not count:
            break
        taken += count
    return taken


def _refused(reason: str, found: object, valid: str) -> ChunkFileError:
    what = "the kept state of a text cannot be used"
    return ChunkFileError(what, reason=reason, found=found, valid=valid)
