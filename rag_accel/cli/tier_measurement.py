"""Searches per second of an index, in memory and from a file with hot clusters above it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rag_accel.engines.retrieval import DocumentIndex, load_index
from rag_accel.engines.retrieval.index.list_files import give_back_pages, mapped_range
from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY
from rag_accel.engines.retrieval.vectors.inverted_list import num_bytes
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.tiered import TieredVectors
from rag_accel.errors import ConfigError

#: searches before those that are measured: clusters are exchanged four times
WARM_UP = 4 * EXCHANGED_EVERY
_MOST_SEARCHES = 1_000


def measure_tiers(
    path: Path, queries: Vectors, k: int, shares: tuple[float, ...]
) -> Iterator[tuple[str, float]]:
    """Yield ways to hold an index, and the searches per second, one at a time, of each.

    A copy of the file is made in its folder and removed again. Its pages are given back to the
    system before each search, as if there were no memory for any.

    Args:
        path: of the index.
        queries: ``[n, dim]``; asked in turn, some hundreds of times.
        k: documents that each asks for.
        shares: of the bytes of all clusters, what hot ones may take.

    Raises:
        ConfigError: the folder takes no copy, or the system gives no pages back.
    """
    index = load_index(path, hot=None)
    vectors = index.view().vectors
    assert isinstance(vectors, IvfVectors), "an index without clusters"
    yield "with all clusters in memory", _rate(index, queries, k, None)
    of_lists = num_bytes(vectors.cluster_sizes(), vectors.dimension)
    del index, vectors
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
            copy = Path(folder) / path.name
            shutil.copyfile(path, copy)
            for share in (0.0, *shares):
                hot_bytes = max(int(of_lists.max()), int(share * of_lists.sum()))
                held = load_index(copy, hot="ram", hot_bytes=hot_bytes)
                name = f"from the file, with hot_bytes={hot_bytes}"
                yield name + ("" if share else ", one cluster"), _rate(held, queries, k, copy)
    except OSError as error:
        raise ConfigError(
            "no copy of the index can be made to be measured",
            where=str(path.parent),
            found=str(error),
            valid="a folder that can be written, with room for a second copy",
        ) from error


def _rate(index: DocumentIndex, queries: Vectors, k: int, path: Path | None) -> float:
    count, seconds = min(_MOST_SEARCHES, max(len(queries), WARM_UP)), 0.0
    for turn in range(WARM_UP + count):
        query = queries[turn % len(queries)][None]
        if path is not None:
            _give_back(index, path)
        started = time.perf_counter()
        index.search(query, k)
        if turn >= WARM_UP:
            seconds += time.perf_counter() - started
    return count / seconds


def _give_back(index: DocumentIndex, path: Path) -> None:
    vectors = index.view().vectors
    assert isinstance(vectors, TieredVectors), "lists in memory"
    left = give_back_pages(path, *mapped_range(vectors.given[0]))
    if left > 0.5:
        raise ConfigError(
            "the pages of a file cannot be given back here",
            where=str(path),
            found=f"{left:.0%} of them stay in memory",
            valid="a file system on a disk, and Linux 5.4 or later",
            hint="without --measure the shares are counted",
        )
