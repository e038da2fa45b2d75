"""Measure searches of an index in a file, of whose clusters a third fits into memory.

Vectors of a mixture, in clusters found by FAISS. Queries come in batches; each lies near a document
that is drawn by Zipf's law from those that are asked for, or from all alike. The row
``hottest_fifth`` says how skewed that is: HedraRAG's Figure 8 has 0.69.

Before every batch the pages of the file are given back (``MADV_PAGEOUT``), so that a cluster
outside of memory is read from the disk; the share that ``mincore`` finds all the same is a row: an
exchange of clusters may read meanwhile. Where the system gives none back, one row is ``missing``.

Arms, each with a file of its own: FAISS's own lists on disk, read ahead by 32 threads as it does by
itself; the accelerated index with no more memory for clusters than one takes; and with a third of
their bytes. Half of each stream warms up. Every answer must be that of the index in memory, in ids
and scores; FAISS's answers are compared by their ids (near ties may differ).

Ratios:
    tier_gain: against the slow tier alone, FAISS's or ours, whichever is faster: searches/s of the
        Zipf stream with hot clusters / without; median over turns.
    tier_gain_uniform: against the same: of the uniform stream.
    tier_vs_memory: against the index in memory: searches/s of the Zipf stream with hot clusters /
        of all clusters in memory.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bench.answers import too_many
from bench.local_llm.choices import missing_row
from bench.measure import median, rotate
from bench.results import Row, SuiteResult, median_row, sizes_of
from bench.vectors import IndexSize, build_index, held_by
from rag_accel.engines.retrieval import DocumentIndex, load_index, save_index
from rag_accel.engines.retrieval.index.list_files import give_back_pages, mapped_range
from rag_accel.engines.retrieval.vectors.inverted_list import num_bytes
from rag_accel.engines.retrieval.vectors.tiered import TieredVectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope, load_faiss

OURS, SLOW, FAISS, MEMORY = "accelerated", "slow tier alone", "FAISS on disk", "in memory"
_CACHE = Path.home() / ".cache/rag_accel/bench"

_logger = logging.getLogger("bench.tiers")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        index: its vectors and clusters.
        batches: of each stream; half of them warm up.
        queries: of a batch.
        k: documents that a query asks for.
        turns: each of a stream of its own.
        asked: documents that the Zipf stream asks for.
        share: of the bytes of all clusters, what fits into memory.
    """

    index: IndexSize
    batches: int
    queries: int
    k: int
    turns: int
    asked: int = 500
    share: float = 1 / 3


QUICK = Sizes(IndexSize(100_000, 256, 16), batches=120, queries=8, k=10, turns=3)
FULL = Sizes(IndexSize(1_000_000, 2048, 64), batches=800, queries=8, k=10, turns=5)

Search = Callable[[Any], list[list[tuple[str, float]]]]


@dataclass(frozen=True, slots=True)
class Arm:
    """An index that is searched.

    Args:
        search: returns ids and scores for each query.
        forget: gives the pages of its file back, and returns the share that stays.
        index: of ours.
    """

    search: Search
    forget: Callable[[], float]
    index: DocumentIndex | None = None


def run(quick: bool, sizes: Sizes | None = None, cache: Path = _CACHE) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    with tempfile.TemporaryDirectory() as folder:
        index = build_index(chosen.index, cache)
        with _arms(index, Path(folder), chosen) as arms:
            if arms[SLOW].forget():
                row = missing_row("tiers", "pages of a file that the system gives back when asked")
                return SuiteResult("tiers", (row,), {}, sizes=sizes_of(chosen))
            return _measure(index, arms, chosen)


def _measure(index: DocumentIndex, arms: dict[str, Arm], sizes: Sizes) -> SuiteResult:
    rows, ratios = list[Row](), dict[str, float]()
    for name, skew in (("Zipf stream", 1.5), ("uniform stream", 0.0)):
        streams = [_stream(index, sizes, skew, seed) for seed in range(sizes.turns + 1)]
        turns = _turns(index, arms, streams, sizes)
        rates = {arm: [one.rate for one in found] for arm, found in turns.items()}
        for arm, found in turns.items():
            rows.append(median_row(arm, name, "searches_per_s", rates[arm]))
            different, count = sum(one.different for one in found), sum(one.count for one in found)
            rows.append(Row(arm, name, "different_answers", different, None, count))
            rows.append(median_row(arm, name, "pages_left", [one.left for one in found]))
        reads = np.concatenate(
            [held_by(index)._visited(b, SearchScope(len(index))) for b in chain(*streams)]
        )
        times = np.sort(np.bincount(reads.ravel(), minlength=held_by(index).num_clusters))[::-1]
        hottest = float(times[: len(times) // 5].sum() / times.sum())
        rows.append(Row("all", name, "hottest_fifth", hottest, None, int(times.sum())))
        hits = [one.hit_rate for one in turns[OURS]]
        rows.append(median_row(OURS, name, "hit_rate", hits))
        pairs = zip(rates[OURS], rates[SLOW], rates[FAISS], strict=True)
        gain = median([ours / max(others) for ours, *others in pairs])
        key = "tier_gain" if skew else "tier_gain_uniform"
        ratios[key] = gain
        if skew:
            memory = zip(rates[OURS], rates[MEMORY], strict=True)
            ratios["tier_vs_memory"] = median([ours / all_ for ours, all_ in memory])
        _logger.info("%s: %s, hits %s", name, rates, hits)
    wrong = too_many([row for row in rows if row.system != FAISS], "different_answers")
    return SuiteResult("tiers", tuple(rows), ratios, sizes=sizes_of(sizes), wrong=wrong)


def _turns(
    index: DocumentIndex, arms: dict[str, Arm], streams: list[Any], sizes: Sizes
) -> dict[str, list[_Run]]:
    """Run all arms, another one first in each turn."""
    right = [[_found(index, batch, sizes.k) for batch in stream] for stream in streams]

    def runs(name: str) -> Callable[[int], _Run]:
        return lambda turn: _run(arms[name], streams[turn], right[turn], name)

    return rotate({name: runs(name) for name in arms}, sizes.turns)


@dataclass(frozen=True, slots=True)
class _Run:
    rate: float
    different: int
    count: int
    hit_rate: float
    left: float


def _run(arm: Arm, stream: list[Any], right: list[Any], name: str) -> _Run:
    half, seconds, answers = len(stream) // 2, 0.0, list[Any]()
    left = 0.0
    before = {} if arm.index is None else dict(arm.index.tier_counts)
    for place, batch in enumerate(stream):
        if place == half and arm.index is not None:
            before = dict(arm.index.tier_counts)
        left += arm.forget()
        started = time.perf_counter()
        found = arm.search(batch)
        if place >= half:
            seconds += time.perf_counter() - started
            answers.append(found)
    counts = {} if arm.index is None else arm.index.tier_counts
    reads, hot = (
        counts.get(what, 0) - before.get(what, 0) for what in ("cluster_reads", "hot_cluster_reads")
    )
    pairs = list(zip(chain(*answers), chain(*right[half:]), strict=True))
    ids = [[{id for id, _ in one} for one in pair] for pair in pairs]
    same = [a == b for a, b in (ids if name == FAISS else pairs)]
    rate, hit_rate = len(pairs) / seconds, hot / max(1, reads)
    return _Run(rate, same.count(False), len(pairs), hit_rate, left / len(stream))


def _stream(index: DocumentIndex, sizes: Sizes, skew: float, seed: int) -> list[Any]:
    """Return batches of queries, each near a document that is drawn again and again."""
    random, held = np.random.default_rng(seed), held_by(index)
    labels, _ = held.assignments()
    count = sizes.batches * sizes.queries
    if skew:
        # The same documents in every turn, as what is asked for often stays so for a while.
        asked = np.random.default_rng(7).permutation(labels)[: sizes.asked]
        weights = np.arange(1, len(asked) + 1) ** -skew
        near = held.gather(random.choice(asked, count, p=weights / weights.sum()))
    else:
        near = held.gather(random.choice(labels, count))
    near = near + 0.02 * random.standard_normal(near.shape, dtype=np.float32)
    return np.split(near.astype(np.float32), sizes.batches)


def _found(index: DocumentIndex, queries: Any, k: int) -> list[list[tuple[str, float]]]:
    return [[(hit.document.id, hit.score) for hit in hits] for hits in index.search(queries, k)]


@contextmanager
def _arms(index: DocumentIndex, folder: Path, sizes: Sizes) -> Iterator[dict[str, Arm]]:
    """Give the arms, over files that are copies of one."""
    first = folder / SLOW
    index._spec = replace(index.spec, hot="ram")
    save_index(index, first, "bench")
    for other in (OURS, FAISS):
        save_index(index, folder / other, "bench")
    held = held_by(index)
    of_lists = num_bytes(held.cluster_sizes(), held.dimension)
    slow = load_index(first, hot_bytes=int(of_lists.max()))
    ours = load_index(folder / OURS, hot_bytes=int(of_lists.sum() * sizes.share))
    yield {
        OURS: _our_arm(ours, folder / OURS, sizes.k),
        SLOW: _our_arm(slow, first, sizes.k),
        FAISS: _faiss_arm(index, folder / FAISS, sizes),
        MEMORY: Arm(lambda queries: _found(index, queries, sizes.k), lambda: 0.0),
    }


def _our_arm(index: DocumentIndex, path: Path, k: int) -> Arm:
    held = held_by(index)
    assert isinstance(held, TieredVectors)
    place = mapped_range(held.given[0])
    return Arm(
        lambda queries: _found(index, queries, k), lambda: give_back_pages(path, *place), index
    )


def _faiss_arm(index: DocumentIndex, path: Path, sizes: Sizes) -> Arm:
    """Return FAISS's own index over the lists of a file, with its own reading ahead."""
    faiss, own = load_faiss(), held_by(index)
    mapped = held_by(load_index(path))
    assert isinstance(mapped, TieredVectors)
    base = mapped.given[0].data.ctypes.data - 4096
    table = faiss.OnDiskInvertedLists()
    table.nlist, table.code_size, table.read_only = own.num_clusters, 4 * own.dimension, True
    table.filename, table.totsize = str(path), path.stat().st_size
    table.lists.clear()
    for one in mapped.given:
        place = faiss.OnDiskOneList()
        place.size, place.capacity = len(one), len(one) + len(one) % 2
        place.offset = one.data.ctypes.data - base
        table.lists.push_back(place)
    del mapped
    table.do_mmap()
    stock = faiss.IndexIVFFlat(
        own.quantizer, own.dimension, own.num_clusters, faiss.METRIC_INNER_PRODUCT
    )
    stock.is_trained, stock.ntotal, stock.nprobe = True, len(index), sizes.index.nprobe
    stock.replace_invlists(table, False)
    stock.referenced_objects = [own, table]
    start = int(table.ptr)

    def search(queries: Any) -> list[list[tuple[str, float]]]:
        scores, labels = stock.search(queries, sizes.k)
        rows = zip(labels.tolist(), scores.tolist(), strict=True)
        return [[(str(label), score) for label, score in zip(*row, strict=True)] for row in rows]

    return Arm(search, lambda: give_back_pages(path, start, table.totsize))
