"""The file of a knowledge graph: checked, of one version, read without trusting it.

    magic 8 | version 4 | digest 32 | header length 8 | header JSON | texts | numbers

The digest (SHA-256) covers every byte but itself. ``texts`` are all names and descriptions, one
after the other, in UTF-8; ``numbers`` are their lengths, the triples and which entity each
description is of. Numbers are little-endian; no pickle is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.engines.knowledge.names import Triple
from rag_accel.errors import GraphFileError
from rag_accel.system.files import replaced_file

FORMAT_VERSION = 1
MAGIC = b"\x89RAGKGR\n"
_FRAME = struct.Struct("<8sI32sQ")
_UNDIGESTED = struct.Struct("<8sI")
_NUMBER = np.dtype("<i8")
_COUNTS = ("names", "descriptions", "triples", "text_bytes")
#: half of a surrogate pair is a character to Python
_ERRORS = "surrogatepass"


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """The triples and texts in a file."""

    triples: tuple[Triple, ...]
    texts: Mapping[str, str]


def write_graph(graph: StoredGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph to ``path``, replacing what is there in one step, with mode 0600."""
    names = list(
        dict.fromkeys((*(name for triple in graph.triples for name in triple), *graph.texts))
    )
    ids = {name: place for place, name in enumerate(names)}
    encoded = [text.encode("utf-8", _ERRORS) for text in (*names, *graph.texts.values())]
    blob = b"".join(encoded)
    numbers = np.array(
        [
            *map(len, encoded),
            *(ids[name] for triple in graph.triples for name in triple),
            *(ids[name] for name in graph.texts),
        ],
        _NUMBER,
    ).tobytes()
    sizes = (len(names), len(graph.texts), len(graph.triples), len(blob))
    header = json.dumps(dict(zip(_COUNTS, sizes, strict=True))).encode("ascii")
    body = header + blob + numbers
    digest = _digest(_UNDIGESTED.pack(MAGIC, FORMAT_VERSION), len(header), body)
    with replaced_file(Path(path).resolve()) as file:
        file.write(_FRAME.pack(MAGIC, FORMAT_VERSION, digest, len(header)) + body)


def read_graph(path: str | os.PathLike[str]) -> StoredGraph:
    """Read what ``write_graph`` wrote.

    Raises:
        GraphFileError: the file is damaged, foreign or of another version.
        OSError: the file cannot be read.
    """
    source = Path(path)
    data = source.read_bytes()
    if data[: len(MAGIC)] != MAGIC:
        raise _error(
            "not a stored knowledge graph",
            source,
            f"a file that starts with {data[: len(MAGIC)]!r}",
            f"a file that starts with {MAGIC!r}",
        )
    if len(data) < _FRAME.size:
        raise _damaged(source, f"{len(data)} bytes")
    magic, version, digest, length = _FRAME.unpack_from(data)
    if version != FORMAT_VERSION:
        raise _error(
            "a stored knowledge graph of another format version",
            source,
            f"version {version}",
            f"version {FORMAT_VERSION}",
        )
    body = data[_FRAME.size :]
    if _digest(_UNDIGESTED.pack(magic, version), length, body) != digest:
        raise _damaged(source, "bytes that differ from their checksum")
    try:
        return _parsed(body, length)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _damaged(source, f"contents that do not fit together ({error})") from error


def _parsed(body: bytes, header_bytes: int) -> StoredGraph:
    header: dict[str, Any] = json.loads(body[:header_bytes])
    num_names, num_texts, num_triples, size = (int(header[name]) for name in _COUNTS)
    blob = body[header_bytes : header_bytes + size]
    numbers = np.frombuffer(body[header_bytes + size :], _NUMBER)
    lengths, ids = np.split(numbers, [num_names + num_texts])
    texts = list(_cut(blob, lengths))
    names, told = texts[:num_names], texts[num_names:]
    ends, of = np.split(ids, [3 * num_triples])
    if len(of) != num_texts or (len(ids) and not 0 <= ids.min() <= ids.max() < num_names):
        raise ValueError("ids out of range")
    triples = _triples(names, ends.reshape(-1, 3).tolist())
    return StoredGraph(
        tuple(triples), dict(zip((names[entity] for entity in of), told, strict=True))
    )


def _triples(names: Sequence[str], rows: Iterable[Sequence[int]]) -> Iterator[Triple]:
    for head, relation, tail in rows:
        yield names[head], names[relation], names[tail]


def _cut(blob: bytes, lengths: np.ndarray) -> Iterator[str]:
    start = 0
    for length in lengths.tolist():
        yield blob[start : start + length].decode("utf-8", _ERRORS)
        start += length
    if start != len(blob):
        raise ValueError("texts of another length")


def _digest(frame: bytes, header_bytes: int, body: bytes) -> bytes:
    return hashlib.sha256(frame + header_bytes.to_bytes(8, "little") + body).digest()


def _damaged(path: Path, found: str) -> GraphFileError:
    return _error("the stored knowledge graph is damaged", path, found, "the bytes as written")


def _error(what: str, path: Path, found: str, valid: str) -> GraphFileError:
    return GraphFileError(
        what,
        where=str(path),
        found=found,
        valid=valid,
        hint="restore the file from a copy, or build the graph again from its triples",
    )
