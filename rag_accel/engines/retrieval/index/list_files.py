"""The layout of a stored index whose lists are read where they lie in its file.

After a margin to the first whole page come the lists of all clusters, each as a ``InvertedList``,
with documents named by their place in the order of insertion. They have a checksum each, which is
compared when a list is first read: comparing all would read the whole file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.index.file_format import PREAMBLE, damaged, part_start
from rag_accel.engines.retrieval.index.store import ListsSnapshot
from rag_accel.engines.retrieval.vectors.checks import checked_vectors
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList, num_bytes
from rag_accel.errors import EngineOutputError

#: the part that is not read but mapped
LISTS = "lists"
_PAGE = 4096
_PAGEOUT = 21  # MADV_PAGEOUT, which Python does not name


class StoredLists(NamedTuple):
    """Lists in a file.

    Args:
        lists: of each cluster.
        starts: where each begins in the file.
        sums: that each is to have.
        clusters: ``[documents]``, of each document.
        path: of the file.
        memory: the file, mapped.
    """

    lists: tuple[InvertedList, ...]
    starts: list[int]
    sums: Labels
    clusters: Labels
    path: Path
    memory: mmap.mmap

    def check(self, cluster: int) -> None:
        """Raise IndexFileError unless a list is as it was written, and holds its cluster."""
        one, name = self.lists[cluster], f"the list of cluster {cluster}"
        if zlib.crc32(one.data.data) != self.sums[cluster]:
            raise damaged(self.path, f"{name} differs from its checksum", "the bytes as written")
        labels = one.labels
        are_known = bool(np.all((labels >= 0) & (labels < len(self.clusters))))
        if not (
            are_known and np.all(np.diff(labels) > 0) and np.all(self.clusters[labels] == cluster)
        ):  # there are as many as are assigned to it
            raise damaged(self.path, f"{name} has other documents", "those assigned to it")
        try:
            checked_vectors(one.vectors, one.vectors.shape[1], lambda row: f"vector {row}")
        except EngineOutputError as error:
            raise damaged(self.path, f"{name} has bad vectors: {error}", "finite ones") from error

    def reading_ahead(self) -> Callable[[Sequence[int]], None] | None:
        """Return what has the system read lists; None if this one cannot be asked to."""
        needed = getattr(mmap, "MADV_WILLNEED", None)
        return None if needed is None else partial(self._read_ahead, needed)

    def _read_ahead(self, needed: int, clusters: Sequence[int]) -> None:
        for cluster in clusters:
            start, size = self.starts[cluster], self.lists[cluster].data.nbytes
            before = start % mmap.PAGESIZE
            if size:
                self.memory.madvise(needed, start - before, before + size)


def mapped_range(one: InvertedList) -> tuple[int, int]:
    """Return where the file of a list is mapped: its address, and its length in bytes."""
    memory: Any = one.data
    while not isinstance(memory, mmap.mmap):
        memory = memory.obj if isinstance(memory, memoryview) else memory.base
    return np.frombuffer(memory, dtype=np.uint8).ctypes.data, len(memory)


def give_back_pages(path: Path, address: int, length: int) -> float:
    """Have the system forget what it read of a file that is mapped; return the share that stays.

    1.0 where the system cannot be asked.
    """
    pages: Any = (ctypes.c_ubyte * (-(-length // mmap.PAGESIZE)))()
    at = ctypes.c_void_p(address), ctypes.c_size_t(length)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.madvise(*at, _PAGEOUT)
        with path.open("rb") as file:  # what was read ahead, and is not mapped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        failed = libc.mincore(*at, pages)
    except (AttributeError, OSError):
        return 1.0
    return 1.0 if failed else float(np.mean(np.frombuffer(pages, dtype=np.uint8) & 1))


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
    clusters: Labels,
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
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(memory, dtype=np.uint8)
    starts = (start + ends - num_bytes(sizes, dimension)).tolist()
    lists = tuple(
        InvertedList(data[begin : start + end], size, dimension)
        for begin, end, size in zip(starts, ends.tolist(), sizes.tolist(), strict=True)
    )
    return StoredLists(lists, starts, sums, clusters, path, memory)
