"""The layout of a stored index whose lists are read where they lie in its file.

After a margin to the first whole page come the lists of all clusters, each as a ``InvertedList``,
with documents named by their place in the order of insertion. They have a checksum each, which is
compared when a list is first read: comparing all would read the whole file.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.index.file_format import PREAMBLE, damaged, part_start
from rag_accel.engines.retrieval.index.store import ListsSnapshot
from rag_accel.engines.retrieval.vectors.inverted_list import Bytes, InvertedList, num_bytes

#: the part that is not read but mapped
LISTS = "lists"
_PAGE = 4096


class StoredLists(NamedTuple):
    """Lists in a file, and the sum that each is to have."""

    lists: tuple[InvertedList, ...]
    sums: Labels
    path: Path

    def check(self, cluster: int) -> None:
        """Raise IndexFileError unless a list is as it was written."""
        if zlib.crc32(self.lists[cluster].data.data) != self.sums[cluster]:
            raise damaged(
                self.path,
                f"the list of cluster {cluster} differs from its checksum",
                "the bytes as written",
            )


def list_parts(snapshot: ListsSnapshot) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Give the parts that stand for vectors and clusters, lists first."""
    sums, clusters = list[int](), np.empty(len(snapshot.labels), dtype=np.int64)

    def lists() -> Iterator[bytes]:
        for cluster, one in enumerate(snapshot.lists):
            places = np.searchsorted(snapshot.labels, one.labels)
            clusters[places] = cluster
            data = InvertedList.of(one.vectors, places).data
            sums.append(zlib.crc32(data.data))
            yield data.tobytes()

    sizes = np.array([len(one) for one in snapshot.lists], dtype="<i8")
    yield "margin", iter([bytes(_PAGE - PREAMBLE.size)])
    yield LISTS, lists()
    yield "sizes", iter([sizes.tobytes()])
    yield "sums", iter([np.array(sums, dtype="<i8").tobytes()])
    yield "assignments", iter([clusters.astype("<i8").tobytes()])


def map_lists(
    file: BinaryIO,
    path: Path,
    footer: Mapping[str, Any],
    parts: Mapping[str, bytearray],
    dimension: int,
) -> StoredLists:
    """Map the lists of a file that is open; they stay as they are if another takes its place.

    Raises:
        IndexFileError: sizes that do not fit the file.
        ValueError: parts that are no arrays.
        KeyError: parts that are missing.
    """
    sizes, sums = (np.frombuffer(parts[name], dtype="<i8") for name in ("sizes", "sums"))
    start = part_start(footer, LISTS)
    total = next(part["size"] for part in footer["parts"] if part["name"] == LISTS)
    most = total // (4 * dimension)
    if len(sums) != len(sizes) or not np.all((sizes >= 0) & (sizes <= most)) or start % 8:
        raise damaged(path, "sizes of lists that cannot be", f"sizes from 0 to {most}")
    ends = np.cumsum(num_bytes(sizes, dimension))
    if (int(ends[-1]) if len(ends) else 0) != total:
        raise damaged(path, f"lists of {ends[-1]} bytes", f"{total} bytes")
    data = mapped(file)
    lists = tuple(
        InvertedList(data[start + end - num_bytes(size, dimension) : start + end], size, dimension)
        for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)
    )
    return StoredLists(lists, sums, path)


def mapped(file: BinaryIO) -> Bytes:
    """Return the bytes of a file, mapped: they are read from it when they are used."""
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
