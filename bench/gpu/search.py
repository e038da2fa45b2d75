"""Searches on the card against the processor: scans of vectors, and indexes with copies there."""

from __future__ import annotations

import threading
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.gpu.device import MeasuredDevice, PartFound, PartTime
from bench.measure import median
from bench.paired import in_ms
from bench.results import row_of
from bench.vectors import make_mixture
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.vectors.device_lists import DeviceLists
from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY
from rag_accel.engines.retrieval.vectors.spec import Metric

CARD, PROCESSOR = "card", "processor"
#: Of float32 products of unit vectors, summed in another order.
TOLERANCE = 1e-5
_EXCHANGING = "rag-accel-clusters"


@dataclass(frozen=True, slots=True)
class SearchSizes:
    """How much is measured.

    Args:
        vectors: of an index.
        dimension: of them.
        clusters: of an index that has some.
        nprobe: clusters that a search reads.
        together: queries of a call.
        k: documents that a query asks for.
        turns: of each number of queries.
    """

    vectors: int = 200_000
    dimension: int = 384
    clusters: int = 512
    nprobe: int = 64
    together: tuple[int, ...] = (1, 16, 64)
    k: int = 10
    turns: int = 31


TINY = SearchSizes(2000, 16, 8, 4, k=5, turns=3)

#: Returns ids of ``[queries, dimension]``, best first.
SearchIds = Callable[[Any], list[list[int]]]


def measure(device: MeasuredDevice, time: PartTime, found: PartFound) -> None:
    """Scan all vectors on both, then search indexes with and without copies on the card."""
    sizes = TINY if device.is_tiny else SearchSizes()
    mixture = make_mixture(sizes.dimension)
    vectors, queries = mixture.draw(sizes.vectors, 1), mixture.draw(max(sizes.together), 2)
    workload = f"scan of {sizes.vectors} vectors of {sizes.dimension}"

    def scan() -> None:
        arms = {CARD: _scan_there(device.name, vectors, sizes.k), PROCESSOR: _scan_here(vectors, sizes.k)}
        _compare(arms, workload, vectors, queries, found)
        if not found.wrong:
            _times(arms, workload, "gpu_vs_cpu", queries, sizes, time.share(0.3), found)

    found.within_memory(device, CARD, workload, scan)
    if found.wrong:
        return
    try:
        for share, kind, key in ((0.4, "flat", "flat_hot_vs_cpu"), (1.0, "ivf", "hot_vs_cpu")):
            _index(device, kind, key, vectors, queries, sizes, time.share(share), found)
    except ImportError:
        found.lacks("indexes with copies on the card", "faiss")


def _scan_there(device: str, vectors: Any, k: int) -> SearchIds:
    """Return the scan of copies that indexes have on a device."""
    lists = DeviceLists(device, Metric.INNER_PRODUCT, 1, vectors.shape[1])
    copies = lists.extended(0, vectors, np.arange(len(vectors)))
    if copies is None:
        raise RuntimeError(lists.fault)

    def search(queries: Any) -> list[list[int]]:
        ended = lists.end(lists.begin(copies, queries, k, None, None))
        if ended is None:
            raise RuntimeError(lists.fault)
        return ended[1].tolist()

    return search


def _scan_here(vectors: Any, k: int) -> SearchIds:
    """Return the same with numpy, on all cores that its products take."""

    def search(queries: Any) -> list[list[int]]:
        scores = queries @ vectors.T
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        return np.take_along_axis(best, order, axis=1).tolist()

    return search


def _index(
    device: MeasuredDevice,
    kind: str,
    key: str,
    vectors: Any,
    queries: Any,
    sizes: SearchSizes,
    time: PartTime,
    found: PartFound,
) -> None:
    """Search an index with copies of all its vectors on the card, and one without."""
    workload = f"{kind} index of {sizes.vectors} vectors"
    spec = IndexSpec(sizes.dimension, kind=kind, train_size=sizes.vectors)  # type: ignore[arg-type]
    if kind == "ivf":
        spec = replace(spec, num_clusters=sizes.clusters, nprobe=sizes.nprobe)
    hot_bytes = 2 * (vectors.nbytes + 8 * len(vectors))
    specs = {PROCESSOR: spec, CARD: replace(spec, hot=device.name, hot_bytes=hot_bytes)}

    def search() -> None:
        arms: dict[str, SearchIds] = {}
        documents = [Document(str(at), "") for at in range(sizes.vectors)]
        for name, one in specs.items():
            index = DocumentIndex(one)
            index.add(documents, vectors)
            arms[name] = _ids_of(index, sizes.k)
        _warm(arms[CARD], queries)
        _compare(arms, workload, vectors, queries, found)
        if not found.wrong:
            _times(arms, workload, key, queries, sizes, time, found)

    found.within_memory(device, CARD, workload, search)


def _ids_of(index: DocumentIndex, k: int) -> SearchIds:
    return lambda queries: [
        [int(hit.document.id) for hit in hits] for hits in index.search(queries, k)
    ]


def _warm(search: SearchIds, queries: Any) -> None:
    """Search until clusters have moved to the card."""
    for turn in range(4 * EXCHANGED_EVERY):
        at = turn % len(queries)
        search(queries[at : at + 1])
    for thread in threading.enumerate():
        if thread.name == _EXCHANGING:
            thread.join()


def _compare(
    arms: dict[str, SearchIds], workload: str, vectors: Any, queries: Any, found: PartFound
) -> None:
    """Count queries whose ids differ by more than ties of scores."""
    there, here = (arms[name](queries) for name in (CARD, PROCESSOR))
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    different = 0
    for row, (ours, plain) in enumerate(zip(there, here, strict=True)):
        scores = [exact[row, each] for each in (ours, plain)]
        is_same = len(set(ours)) == len(plain) and np.abs(scores[0] - scores[1]).max() <= TOLERANCE
        different += not is_same
    found.check(not different, CARD, workload, "different_answers", different)


def _times(
    arms: dict[str, SearchIds],
    workload: str,
    key: str,
    queries: Any,
    sizes: SearchSizes,
    time: PartTime,
    found: PartFound,
) -> None:
    for at, count in enumerate(sizes.together):
        asked = queries[:count]

        def seconds(search: SearchIds, asked: Any = asked) -> Callable[[int], float]:
            def call(_: int) -> float:
                started = clock.perf_counter()
                search(asked)
                return clock.perf_counter() - started

            return call

        own = time.share(1 / (len(sizes.together) - at))
        calls = {name: seconds(search) for name, search in arms.items()}
        times = own.turns(calls, sizes.turns, warm_up=3)
        named = f"{workload}, {count} queries at once"
        if not times[CARD]:
            found.no_time(CARD, named)
            continue
        for name, each in times.items():
            found.rows.append(row_of(name, named, "latency_ms", [in_ms(one) for one in each]))
        pairs = zip(times[PROCESSOR], times[CARD], strict=True)
        found.ratios[f"{key}_{count}"] = median([here / there for here, there in pairs])
