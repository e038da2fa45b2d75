"""An engine over an IVF index of the program: searches of many callers, long ones in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    StepBudget,
)
from rag_accel.engines.retrieval.flat_index_engine import is_searchable, scored
from rag_accel.engines.retrieval.flat_products import sign
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.search_request import Search, checked_searches
from rag_accel.engines.retrieval.stepped_searches import (
    MOST_RESULTS,
    HeldPiece,
    HeldSearch,
    SteppedSearches,
)
from rag_accel.engines.retrieval.vectors.cluster_lists import read_lists
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece, advance
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import (
    NO_LABEL,
    Scores,
    load_faiss,
    thread_count,
)
from rag_accel.system.processor import usable_cores

_FIRST_GUESS = LatencyModel(base_s=0.0005, per_item_s=0.001)


class _State(NamedTuple):
    """The properties of an index that its searches depend on, and the sizes of a search's lists."""

    ntotal: int
    nprobe: int
    lists: Labels
    sizes: Labels


class IvfIndexEngine(SteppedSearches):
    """An engine for SEARCHING (``SearchQuery``) on an IVF index of FAISS.

    Each result is what ``index.search`` returns for the query alone on one thread, bit for bit.
    The searches of a step share its threads, and long ones are read in pieces over several steps.
    A search with equal scores among its results, or at the cut, is made by ``index.search``, whose
    order of them is its own.

    Nothing is copied or kept, and the index is not written to. Its ``nprobe`` is read for each
    search. A search is made again by ``index.search`` where the number of vectors, ``nprobe`` or
    the size of one of its lists changes between two pieces. As with ``index.search``, the index
    must not change during a step.

    Final value: as of ``FlatIndexEngine``. ``where`` and ``nprobe`` must be None.

    Args:
        index: of a class that ``is_clustered`` knows, and without ``ivf_obstacle``.
        max_batch: queries of one step.
    """

    def __init__(self, index: Any, *, max_batch: int = 64) -> None:
        super().__init__(
            EngineProfile(
                kinds=frozenset({PrimitiveKind.SEARCHING}),
                max_batch=max_batch,
                latency=_FIRST_GUESS,
                max_threads=usable_cores(),
                stepped=True,
                pure=True,
                capabilities=frozenset({Capability.ENDS_IN_TIME}),
            )
        )
        self._index = index
        self._sign = sign(index)
        self._list_sizes: Labels = np.empty(0, dtype=np.int64)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Search on ``budget.threads`` threads; each call of FAISS runs on one of them."""
        self._list_sizes = np.full(self._index.nlist, -1, dtype=np.int64)
        searches, outputs = checked_searches(self._taken(), self._index.d)
        threads = min(budget.threads, self._profile.max_threads)
        with thread_count(1):  # a search on several threads would be rounded otherwise
            return outputs + self._search(searches, budget, threads)

    def read(
        self, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: Any
    ) -> tuple[Scores, Labels]:
        """Read lists of the index, see ``ReadLists``."""
        found = read_lists(self._index, queries, count, clusters, coarse, selector)
        return found[0] * self._sign, found[1]

    def _numbers(self, search: Search, in_pieces: bool) -> int:
        return numbers_read(self._index) if 0 < search.query.k <= MOST_RESULTS else 0

    def _whole(self, group: list[Search], threads: int) -> list[EngineOutput]:
        try:
            begun = self._begin(group)
            pieces = [ScanPiece(scan, 0, len(scan.clusters)) for scan, _ in begun]
            advance(self, pieces, threads)
        except Exception:
            return self._again(group, threads)  # which says of each search whether it fails
        outputs, unsettled = list[EngineOutput](), list[Search]()
        for search, (scan, _) in zip(group, begun, strict=True):
            value = self._documents(search, scan)
            if value is None:
                unsettled.append(search)
            else:
                outputs.append(EngineOutput(search.id, "final", value=value))
        return outputs + self._again(unsettled, threads)

    def _again(self, searches: list[Search], threads: int) -> list[EngineOutput]:
        outputs = list[EngineOutput]()
        for search in searches:
            try:
                numbers, labels = self._index.search(search.vector[None], search.query.k)
            except Exception as error:
                outputs.append(EngineOutput(search.id, "error", error=error))
                continue
            is_found = labels[0] != NO_LABEL
            value = scored(numbers[0][is_found] * self._sign, labels[0][is_found])
            outputs.append(EngineOutput(search.id, "final", value=value))
        return outputs

    def _begin(self, group: list[Search]) -> list[tuple[ClusterScan, Any]]:
        index, queries = self._index, np.stack([search.vector for search in group])
        ntotal, nprobe = index.ntotal, index.nprobe
        coarse, lists = _nearest_lists(index, queries, min(nprobe, index.nlist))
        count = 1 + max(search.query.k for search in group)
        begun = list[tuple[ClusterScan, Any]]()
        for query, numbers, mine in zip(queries, coarse, lists, strict=True):
            sizes = self._sizes(mine)
            scan = ClusterScan(query, count, mine, numbers, sizes)
            begun.append((scan, _State(ntotal, nprobe, mine, sizes)))
        return begun

    def _read(self, pieces: Sequence[HeldPiece], threads: int) -> list[HeldSearch]:
        changed = [held for held, piece in pieces if self._differs(held, piece.start, piece.end)]
        advance(self, [one.piece for one in pieces if one.held not in changed], threads)
        return changed

    def _value(self, held: HeldSearch) -> tuple[Any, ...] | None:
        if self._differs(held, 0, held.scan.position):
            return None
        return self._documents(held.search, held.scan)

    def _differs(self, held: HeldSearch, start: int, end: int) -> bool:
        """Tell whether the index has changed since a search began, as far as some lists show."""
        state: _State = held.state
        index, part = self._index, slice(start, end)
        if (state.ntotal, state.nprobe) != (index.ntotal, index.nprobe):
            return True
        return not np.array_equal(state.sizes[part], self._sizes(state.lists[part]))

    def _sizes(self, lists: Labels) -> Labels:
        """Return how many vectors each list holds in this step; 0 of -1, which stands for none."""
        known, size_of = self._list_sizes, self._index.invlists.list_size
        some = lists[lists >= 0]
        for number in some[known[some] < 0].tolist():
            known[number] = size_of(number)
        return np.where(lists >= 0, known[lists], 0)

    def _documents(self, search: Search, scan: ClusterScan) -> tuple[ScoredDocument, ...] | None:
        """Return the nearest that were read; None if all are and equal scores leave them open."""
        k = search.query.k
        found = scan.labels[: k + 1] != NO_LABEL
        scores, labels = scan.scores[: k + 1][found], scan.labels[: k + 1][found]
        if scan.is_over and (scores[1:] == scores[:-1]).any():
            return None
        return scored(scores[:k], labels[:k])


def numbers_read(index: Any) -> int:
    """Return about how many numbers a search of an IVF index reads."""
    return index.ntotal * min(index.nprobe, index.nlist) // max(1, index.nlist) * index.d


def is_clustered(index: Any) -> bool:
    """Tell whether an index is of a class that an ``IvfIndexEngine`` can search."""
    return type(index) in _classes()


def ivf_obstacle(index: Any) -> str | None:
    """Return why an ``IvfIndexEngine`` cannot search an index of such a class; None if it can."""
    faiss, name = load_faiss(), type(index).__name__
    if index.metric_type not in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT):
        return f"its {name} has another metric; L2 or inner product"
    if index.max_codes:
        return f"its {name} has max_codes={index.max_codes}; max_codes=0"
    if index.parallel_mode & index.PARALLEL_MODE_NO_HEAP_INIT:
        return f"its {name} does not begin its heaps; parallel_mode=0"
    quantizer = faiss.downcast_index(index.quantizer)
    if not is_searchable(quantizer):
        return f"its {name} has a {type(quantizer).__name__} as quantizer; a flat index"
    if not index.is_trained or quantizer.ntotal != index.nlist or index.nprobe < 1:
        return f"its {name} is not trained, or has nprobe={index.nprobe}; nprobe from 1 on"
    return None


@cache
def _classes() -> frozenset[type]:
    faiss = load_faiss()
    return frozenset((faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ))


def _nearest_lists(index: Any, queries: Vectors, nprobe: int) -> tuple[Scores, Labels]:
    """Return FAISS's numbers and lists for each query, ``[n, nprobe]``, as for the query alone."""
    faiss = load_faiss()
    most = max(1, faiss.cvar.distance_compute_blas_threshold - 1)
    quantizer = faiss.downcast_index(index.quantizer)
    parts = [
        quantizer.search(queries[at : at + most], nprobe) for at in range(0, len(queries), most)
    ]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
