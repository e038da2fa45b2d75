"""Decide which stored clusters are multiplied together, and for which queries.

A product has a fixed price and one for each row and each pair. Two neighbouring clusters that are
visited by nearly the same queries are cheaper as one product, in which a few pairs that nobody
asked for are computed and thrown away; so is a gap of clusters that nobody visits, if it is short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.documents import Labels, Mask
from rag_accel.engines.retrieval.scan.codes import ClusterCodes
from rag_accel.engines.retrieval.vectors import NO_LABEL
from rag_accel.errors import ConfigError

# Prices in nanoseconds, measured at dimension 256 on one core; only the speed depends on them.
PRODUCT_COST = 20_000.0  # one more product and what follows it
ROW_COST = 31.0  # one more row, multiplied by 2 to 16 queries: mostly bringing it into order
LONE_ROW_COST = 12.0  # one more row for a single query
PAIR_COST = 0.6  # one more pair of a row and a query
MAX_PAIRS = 1 << 16  # of one product; it stays in the cache


@dataclass(frozen=True, slots=True)
class Piece:
    """Name code rows ``start : stop`` that are multiplied with ``queries``.

    Not every such pair is asked for: ``wanted`` ``[m, clusters]``, by place, says which are.
    ``max_error`` and ``max_length`` are at least those of every row.
    """

    start: int
    stop: int
    queries: Labels
    wanted: Mask
    max_error: float
    max_length: float


@dataclass(frozen=True, slots=True)
class Visits:
    """Say which query visits which cluster.

    Args:
        is_visited: ``[m, clusters]``; by place.
        first: ``[m]``; the place of each query's first cluster with vectors, -1 without any.
    """

    is_visited: Mask
    first: Labels


def check_probes(probes: Sequence[Any] | Labels, count: int, num_clusters: int) -> list[Labels]:
    """Return for each query its cluster ids, without the -1 that pad a row of a FAISS search.

    Raises:
        ConfigError: not one list of integers in -1 to ``num_clusters - 1`` for each query.
    """
    checked = [np.asarray(probe) for probe in probes]
    if len(checked) != count:
        raise _bad_probes("probes", f"{len(checked)} lists", f"one for each of {count} queries")
    for row, probe in enumerate(checked):
        valid = f"integers in {NO_LABEL} to {num_clusters - 1}"
        if probe.ndim != 1 or (probe.size and probe.dtype.kind not in "iu"):
            raise _bad_probes(f"probes[{row}]", f"shape {probe.shape}, {probe.dtype}", valid)
        if probe.size and not NO_LABEL <= int(probe.min()) <= int(probe.max()) < num_clusters:
            raise _bad_probes(f"probes[{row}]", f"{probe.min()} to {probe.max()}", valid)
    return [probe[probe != NO_LABEL].astype(np.int64) for probe in checked]


def visits(codes: ClusterCodes, probes: Sequence[Labels]) -> Visits:
    """Return who visits which place; clusters without vectors are nobody's."""
    lengths = [len(probe) for probe in probes]
    query = np.repeat(np.arange(len(probes)), lengths)
    place = codes.places[np.concatenate([*probes, np.empty(0, dtype=np.int64)])]
    is_filled = np.diff(codes.starts)[place] > 0
    query, place = query[is_filled], place[is_filled]
    is_visited = np.zeros((len(probes), codes.num_clusters), dtype=bool)
    is_visited[query, place] = True
    first = np.full(len(probes), NO_LABEL, dtype=np.int64)
    first[query[::-1]] = place[::-1]  # of several writes the last one stays: the nearest cluster
    return Visits(is_visited, first)


def plan(codes: ClusterCodes, seen: Visits) -> Iterator[Piece]:
    """Cut the union of what the queries visit into pieces; each visit is wanted by one of them.

    Each query's first cluster comes first, for the queries that begin there only: the nearest
    cluster raises the score to be reached further than any other. Then come all other visits.
    """
    queries = np.flatnonzero(seen.first != NO_LABEL)
    firsts = np.zeros_like(seen.is_visited)
    firsts[queries, seen.first[queries]] = True
    begins = [(place, place + 1) for place in np.unique(seen.first[queries]).tolist()]
    yield from _pieces(codes, begins, firsts)
    others = seen.is_visited & ~firsts
    yield from _pieces(codes, runs(codes, others), others)


def runs(codes: ClusterCodes, is_visited: Mask) -> Iterator[tuple[int, int]]:
    """Cut the visited places into runs ``first, last`` that are multiplied as one."""
    starts = codes.starts.tolist()
    first, last, riders, cost = 0, 0, 0, 0.0
    for place, visitors in _visitors(is_visited):
        own = _cost(starts[place + 1] - starts[place], visitors.bit_count())
        if last:
            together = (riders | visitors).bit_count()
            rows = starts[place + 1] - starts[first]
            joined = _cost(rows, together)
            if joined < cost + own and rows * together <= MAX_PAIRS:
                last, riders, cost = place + 1, riders | visitors, joined
                continue
            yield first, last
        first, last, riders, cost = place, place + 1, visitors, own
    if last:
        yield first, last


def _visitors(is_visited: Mask) -> Iterator[tuple[int, int]]:
    """Yield each visited place and its visitors as bits of one integer."""
    width = (len(is_visited) + 7) // 8
    packed = np.packbits(is_visited, axis=0).T.tobytes()
    for place in np.flatnonzero(is_visited.any(axis=0)).tolist():
        yield place, int.from_bytes(packed[place * width : (place + 1) * width], "big")


def _pieces(
    codes: ClusterCodes, planned: Iterable[tuple[int, int]], wanted: Mask
) -> Iterator[Piece]:
    """Cut runs into the rows of single products."""
    starts, errors, lengths = (
        array.tolist() for array in (codes.starts, codes.max_errors, codes.max_lengths)
    )
    for first, last in planned:
        maxima = max(errors[first:last]), max(lengths[first:last])
        queries = np.flatnonzero(wanted[:, first:last].any(axis=1))
        step = max(1, MAX_PAIRS // len(queries))
        for start in range(starts[first], starts[last], step):
            yield Piece(start, min(start + step, starts[last]), queries, wanted, *maxima)


def _cost(rows: int, queries: int) -> float:
    row = ROW_COST if queries > 1 else LONE_ROW_COST
    return PRODUCT_COST + rows * (row + PAIR_COST * queries)


def _bad_probes(where: str, found: str, valid: str) -> ConfigError:
    return ConfigError("bad lists of clusters to visit", where=where, found=found, valid=valid)
