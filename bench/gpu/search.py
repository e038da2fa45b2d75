"""Searches on the card against the processor: scans of vectors, and indexes with copies there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bench.gpu.device import PartRun
from bench.measure import median, timed
from bench.paired import in_ms
from bench.results import row_of
from bench.vectors import make_mixture
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.vectors.device_lists import DeviceLists
from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY
from rag_accel.errors import EngineError

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

SearchIds = Callable[[Any], list[list[int]]]
"""Returns the ids that ``[queries, dimension]`` find, best first."""


def measure(run: PartRun) -> None:
    """Scan all vectors on both, then search indexes with and without copies on the card."""
    sizes = TINY if run.device.is_tiny else SearchSizes()
    mixture = make_mixture(sizes.dimension)
    vectors, queries = mixture.draw(sizes.vectors, 1), mixture.draw(max(sizes.together), 2)
    of = f"{sizes.vectors} vectors of {sizes.dimension}"

    def scans() -> Mapping[str, SearchIds]:
        lists = DeviceLists(run.device.name, Metric.INNER_PRODUCT, 1, sizes.dimension)
        return {CARD: _scan_there(lists, vectors, sizes.k), PROCESSOR: _scan_here(vectors, sizes.k)}

    def indexes(kind: IndexKind) -> Callable[[], Mapping[str, SearchIds]]:
        return lambda: _indexes(kind, run.device.name, vectors, queries, sizes)

    each: list[tuple[str, str, Callable[[], Mapping[str, SearchIds]]]] = [
        ("gpu_vs_cpu", f"scan of {of}", scans),
        ("flat_hot_vs_cpu", f"flat index of {of}", indexes(IndexKind.FLAT)),
        ("hot_vs_cpu", f"clustered index of {of}", indexes(IndexKind.IVF)),
    ]
    for at, (key, workload, make) in enumerate(each):
        own = run.within(1 / (len(each) - at))
        try:
            own.attempt(
                CARD,
                workload,
                partial(_measure, make, key, workload, vectors, queries, sizes, own),
            )
        except ImportError:
            run.note(workload, "faiss", "missing")


def _scan_there(lists: DeviceLists, vectors: Any, k: int) -> SearchIds:
    """Return the scan of copies that indexes have on a device."""
    copies = lists.extended(0, vectors, np.arange(len(vectors)))

    def search(queries: Any) -> list[list[int]]:
        ended = copies and lists.end(lists.begin(copies, queries, k, None, None))
        if ended is None:
            raise EngineError("a scan of the device failed", found=lists.fault)
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


def _indexes(
    kind: IndexKind, device: str, vectors: Any, queries: Any, sizes: SearchSizes
) -> Mapping[str, SearchIds]:
    """Return the searches of an index with copies of all its vectors on the card, and without."""
    spec = IndexSpec(sizes.dimension, kind=kind, train_size=sizes.vectors)
    if kind is IndexKind.IVF:
        spec = replace(spec, num_clusters=sizes.clusters, nprobe=sizes.nprobe)
    hot_bytes = 2 * (vectors.nbytes + 8 * len(vectors))
    documents = [Document(str(at), "") for at in range(sizes.vectors)]
    arms: dict[str, SearchIds] = {}
    specs = {PROCESSOR: spec, CARD: replace(spec, hot=device, hot_bytes=hot_bytes)}
    for name, one in specs.items():
        index = DocumentIndex(one)
        index.add(documents, vectors)
        arms[name] = _ids_of(index, sizes.k)
    for turn in range(4 * EXCHANGED_EVERY):  # until clusters have moved to the card
        at = turn % len(queries)
        arms[CARD](queries[at : at + 1])
    for thread in threading.enumerate():
        if thread.name == _EXCHANGING:
            thread.join()
    return arms


def _ids_of(index: DocumentIndex, k: int) -> SearchIds:
    return lambda queries: [
        [int(hit.document.id) for hit in hits] for hits in index.search(queries, k)
    ]


def _measure(
    make: Callable[[], Mapping[str, SearchIds]],
    key: str,
    workload: str,
    vectors: Any,
    queries: Any,
    sizes: SearchSizes,
    run: PartRun,
) -> None:
    arms = make()
    different = different_answers(arms, vectors, queries)
    run.check(not different, CARD, workload, "different_answers", different)
    for at, count in enumerate(() if different else sizes.together):
        asked = queries[:count]
        calls = {
            name: timed(lambda _, search=search, asked=asked: search(asked))
            for name, search in arms.items()
        }
        own = run.within(1 / (len(sizes.together) - at))
        times = own.turns(calls, sizes.turns, warm_up=3)
        named = f"{workload}, {count} at once"
        if not times[CARD]:
            run.note(CARD, named, "no time")
            continue
        for name, each in times.items():
            run.rows.append(row_of(name, named, "latency_ms", [in_ms(one) for one in each]))
        pairs = zip(times[PROCESSOR], times[CARD], strict=True)
        run.ratios[f"{key}_{count}"] = median([here / there for here, there in pairs])


def different_answers(arms: Mapping[str, SearchIds], vectors: Any, queries: Any) -> int:
    """Count queries whose ids on card and processor differ by more than ties of scores."""
    different = 0
    found = (arms[name](queries) for name in (CARD, PROCESSOR))
    for query, ours, plain in zip(queries.astype(np.float64), *found, strict=True):
        scores = [vectors[ids].astype(np.float64) @ query for ids in (ours, plain)]
        is_whole = len(set(ours)) == len(plain) == len(ours)
        different += not is_whole or bool(np.abs(scores[0] - scores[1]).max() > TOLERANCE)
    return different
