"""The layout of a stored index: one file of checked parts, read without trusting it.

    magic 8 | version 4 | parts ... | footer JSON | digest 32 | footer length 8 | end mark 8

The footer comes last, so that parts are written as they are made; it lists each part's size and
SHA-256, and the digest covers footer, magic and version. Every byte of the file is covered by a
comparison or a checksum. Numbers are little-endian. Nothing here knows what the parts mean.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import struct
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from rag_accel.errors import IndexFileError

FORMAT_NAME = "rag_accel.document_index"
FORMAT_VERSION = 1
#: of files whose lists of clusters are read where they lie
LISTS_VERSION = 2
MAGIC = b"\x89RAGIDX\n"
END_MAGIC = b"\nRAGEND\n"
PREAMBLE = struct.Struct("<8sI")
TAIL = struct.Struct("<32sQ8s")

RESTORE = "restore the file from a copy, or build the index again from its documents"


def write_parts(
    file: BinaryIO,
    parts: Iterable[tuple[str, Iterable[bytes]]],
    fields: Mapping[str, Any],
    version: int = FORMAT_VERSION,
) -> None:
    """Write the whole file: named parts, each from its blocks, then ``fields`` in the footer."""
    preamble = PREAMBLE.pack(MAGIC, version)
    file.write(preamble)
    table = [_write_part(file, name, blocks) for name, blocks in parts]
    header = {"format": FORMAT_NAME, "format_version": version, **fields, "parts": table}
    footer = json.dumps(header).encode("ascii")
    file.write(footer)
    file.write(TAIL.pack(_footer_digest(preamble, footer), len(footer), END_MAGIC))


def read_footer(file: io.BufferedReader, path: Path) -> dict[str, Any]:
    """Check the frame of the file and return the footer's fields.

    Raises:
        IndexFileError: foreign, newer, truncated or damaged.
    """
    size = os.fstat(file.fileno()).st_size
    preamble = file.read(PREAMBLE.size)
    _check_preamble(preamble, path)
    if size < PREAMBLE.size + TAIL.size:
        raise damaged(path, f"{size} bytes", "a complete file; this one is cut short")
    file.seek(size - TAIL.size)
    digest, length, end = TAIL.unpack(file.read(TAIL.size))
    if end != END_MAGIC:
        raise damaged(path, f"no end mark after {size} bytes", "a complete file")
    if length > size - PREAMBLE.size - TAIL.size:
        raise damaged(path, f"a footer of {length} bytes", f"at most the file's {size}")
    file.seek(size - TAIL.size - length)
    footer = file.read(length)
    if _footer_digest(preamble, footer) != digest:
        raise damaged(path, "a footer that differs from its checksum", "the footer as written")
    return _parsed_footer(footer, path, size - PREAMBLE.size - TAIL.size - length)


def read_parts(
    file: io.BufferedReader, path: Path, footer: Mapping[str, Any], but: Container[str] = ()
) -> dict[str, bytearray]:
    """Read every part but some and compare it with its checksum; IndexFileError if it differs."""
    parts: dict[str, bytearray] = {}
    for entry in footer["parts"]:
        if entry["name"] in but:
            continue
        file.seek(part_start(footer, entry["name"]))
        data = bytearray(entry["size"])
        if file.readinto(data) != len(data):
            raise damaged(path, f"part {entry['name']} is cut short", f"{len(data)} bytes")
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise damaged(
                path, f"part {entry['name']} differs from its checksum", "the bytes as written"
            )
        parts[entry["name"]] = data
    return parts


def part_start(footer: Mapping[str, Any], name: str) -> int:
    """Return where a part begins in its file."""
    before = itertools.takewhile(lambda entry: entry["name"] != name, footer["parts"])
    return PREAMBLE.size + sum(entry["size"] for entry in before)


def damaged(path: Path, found: str, valid: str) -> IndexFileError:
    """Return the error for a file that cannot be trusted."""
    return IndexFileError(
        "the stored index is damaged", where=str(path), found=found, valid=valid, hint=RESTORE
    )


def _write_part(file: BinaryIO, name: str, blocks: Iterable[bytes]) -> dict[str, str | int]:
    digest = hashlib.sha256()
    size = 0
    for block in blocks:
        digest.update(block)
        file.write(block)
        size += len(block)
    return {"name": name, "size": size, "sha256": digest.hexdigest()}


def _footer_digest(preamble: bytes, footer: bytes) -> bytes:
    return hashlib.sha256(preamble + footer).digest()


def _check_preamble(preamble: bytes, path: Path) -> None:
    magic = preamble[: len(MAGIC)]
    if magic != MAGIC[: len(magic)] or not magic:
        raise IndexFileError(
            "not a stored index",
            where=str(path),
            found=f"a file that starts with {magic!r}" if magic else "an empty file",
            valid=f"a file that starts with {MAGIC!r}",
            hint="check the path; such files are written by save_index",
        )
    if len(preamble) < PREAMBLE.size:
        raise damaged(path, f"{len(preamble)} bytes", "a complete file; this one is cut short")
    version = PREAMBLE.unpack(preamble)[1]
    if version not in (FORMAT_VERSION, LISTS_VERSION):
        raise IndexFileError(
            "a stored index of another format version",
            where=str(path),
            found=f"version {version}",
            valid=f"version {FORMAT_VERSION} or {LISTS_VERSION}",
            hint="use the version of rag-accel that wrote it or a newer one, "
            "or build the index again from its documents",
        )


def _parsed_footer(footer: bytes, path: Path, parts_size: int) -> dict[str, Any]:
    try:
        fields = json.loads(footer)
    except (ValueError, RecursionError) as error:
        raise damaged(path, "a footer that is not JSON", "a JSON object") from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT_NAME:
        raise damaged(path, "a footer of another format", f"format {FORMAT_NAME}")
    table = fields.get("parts")
    if not isinstance(table, list) or not all(_is_entry(entry) for entry in table):
        raise damaged(path, "an unreadable table of parts", "name, size and sha256 for each")
    total = sum(entry["size"] for entry in table)
    if total != parts_size:
        raise damaged(path, f"parts of {total} bytes in all", f"{parts_size} bytes")
    return fields


def _is_entry(entry: object) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("sha256"), str)
        and type(entry.get("size")) is int
        and entry["size"] >= 0
    )
