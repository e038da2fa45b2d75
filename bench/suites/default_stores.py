"""Measure the stores with which most programs begin: ``InMemoryVectorStore`` and ``FAISS``.

No model takes part: the stores are searched by vector, random ones of length one. What they hold
is what both arms of a pair hold. Each answer must be the plain one: documents and their order
equal, scores (of the first) within 1e-6.

- ``InMemoryVectorStore``, one caller. Its opponents are the plain store, which makes a matrix of
  all its vectors in each search, and 20 lines that somebody might put in its place: the matrix
  kept, with lengths; these do not see what is added. The first searches of the accelerated store
  are its own, and the next makes a copy of its vectors; all of these come before what is measured.
- ``FAISS`` in clusters, 64 threads. Its opponent is the plain store, whose searches nothing shares.
- ``FAISS`` (flat), 64 threads and one. Its opponents are the plain store, at FAISS's own number of
  threads and at one, whichever is faster, and a micro-batcher: the searches that wait go to
  ``index.search`` together.

Ratios:
    in_memory_vs_plain: against the plain InMemoryVectorStore: ms of a search plain / accelerated,
        one caller; median over turns.
    in_memory_vs_kept_matrix: against a matrix of its vectors kept beside it, which sees no change:
        ms of a search by the matrix / accelerated, one caller; median over turns.
    faiss_clusters_vs_plain_64: against the plain FAISS store over an IndexIVFFlat, half of which a
        search reads: searches/s of 64 threads accelerated / plain; median over turns.
    faiss_vs_micro_batcher_64: against a micro-batcher over index.search: searches/s of 64 threads
        accelerated / micro-batcher; median over turns.
    faiss_vs_plain_64: against the plain FAISS store at its best number of threads: searches/s of 64
        threads accelerated / plain; median over turns.
    faiss_vs_plain_1: against the plain FAISS store at its best number of threads: ms of a search
        accelerated / plain, one caller; median over turns.
    one_user: against the plain store: ms of one caller's search accelerated / plain (lower is
        better; accepted: at most 1.03); median over turns, the worst of the three stores, plain
        ``FAISS`` (flat) at its best number of threads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.baselines.calling import Batcher
from bench.loads import system_rows
from bench.measure import Pairs, median, ratios, rotate, timed
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.store_copies import SEARCHES
from rag_accel.engines.retrieval.vectors.vectors import load_faiss, thread_count
from rag_accel_demo.load import Load, run_load

K = 4
#: of the index in clusters
CLUSTERS = 64
#: searches of each arm before those that are measured: as many as an engine waits for, and more
WARM_UP = SEARCHES + 2
PLAIN, OURS, KEPT, BATCHED = "plain", "accelerated", "kept matrix", "micro-batcher"
ONE_THREAD = "plain, one thread of FAISS"

_logger = logging.getLogger("bench.default_stores")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        documents: in each store.
        dimension: of their vectors.
        turns: searches of one caller, and runs of many.
        callers: threads of a run.
        searches: of a run.
    """

    documents: int = 20_000
    dimension: int = 384
    turns: int = 15
    callers: int = 64
    searches: int = 512


QUICK = Sizes(turns=5)
FULL = Sizes()

Found = list[tuple[Any, float]]
Alone = dict[str, Pairs[float]]
"""Of each store, the ms of one caller's searches, plain and accelerated."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A search by vector, called as a chain is."""

    search: Callable[[Any, int], Found]

    def invoke(self, vector: Any) -> Found:
        """Return the nearest documents and their scores."""
        return self.search(vector, K)


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    vectors = _vectors(chosen.documents, chosen.dimension, 1)
    queries = _vectors(chosen.searches, chosen.dimension, 2).tolist()
    with bench_accelerator() as accelerator:
        rows, found, alone = list[Row](), dict[str, float](), Alone()
        for measure in (_in_memory, _faiss, _faiss_in_clusters):
            more_rows, more = measure(vectors, queries, chosen, accelerator, alone)
            rows, found = [*rows, *more_rows], {**found, **more}
    more_rows, more = one_user(alone)
    rows, found = [*rows, *more_rows], {**found, **more}
    _logger.info("%s", found)
    wrong = (
        *too_many(rows, "different_documents"),
        *too_many(rows, "max_score_difference", 1e-6),
    )
    return SuiteResult("default_stores", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _vectors(count: int, dimension: int, seed: int) -> Any:
    drawn = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


# InMemoryVectorStore ---------------------------------------------------------------------------


def _in_memory(
    vectors: Any, queries: Sequence[Any], sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    workload = f"InMemoryVectorStore, {len(vectors)} documents, one caller"
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=sizes.dimension))
    for number, vector in enumerate(vectors.tolist()):
        name = str(number)
        store.store[name] = {"id": name, "vector": vector, "text": name, "metadata": {}}
    kept, fast = _KeptMatrix(store), accelerate(store, accelerator=accelerator)
    arms = {
        PLAIN: Arm(store.similarity_search_with_score_by_vector),
        KEPT: Arm(kept.search),
        OURS: Arm(fast.similarity_search_with_score_by_vector),
    }
    first, copying = _adopt(arms[OURS], queries[-1])
    times = _one_by_one(arms, queries, sizes.turns)
    alone[workload] = _lone(times, PLAIN)
    answers = {name: [arm.invoke(query) for query in queries[:8]] for name, arm in arms.items()}
    rows = [
        Row(OURS, workload, "first_search_ms", first, None, 1),
        Row(OURS, workload, "copying_search_ms", copying, None, 1),
        *_time_rows(times, workload),
        *_answer_rows(answers, workload),
    ]
    return rows, {
        "in_memory_vs_plain": _ratio(times[OURS], times[PLAIN]),
        "in_memory_vs_kept_matrix": _ratio(times[OURS], times[KEPT]),
    }


def _adopt(arm: Arm, query: Any) -> tuple[float, float]:
    """Search a new store until an engine does it; return the ms of the first and of the last."""
    search = timed(lambda _: arm.invoke(query))
    taken = [in_ms(search(turn)) for turn in range(SEARCHES + 1)]
    return taken[0], taken[-1]


class _KeptMatrix:
    """What a user might write in 20 lines, once it is clear where the time goes."""

    def __init__(self, store: InMemoryVectorStore) -> None:
        self._entries = list(store.store.values())
        rows = np.array([entry["vector"] for entry in self._entries])
        self._unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def search(self, vector: Any, k: int) -> Found:
        """Return the nearest documents and their scores."""
        query = np.asarray(vector)
        scores = self._unit @ (query / np.linalg.norm(query))
        near = np.argpartition(-scores, k)[:k]
        return [(self._document(at), float(scores[at])) for at in near[np.argsort(-scores[near])]]

    def _document(self, place: int) -> Document:
        entry = self._entries[place]
        return Document(entry["text"], id=entry["id"], metadata=entry["metadata"])


# FAISS -------------------------------------------------------------------------------------------


def _faiss(
    vectors: Any, queries: Sequence[Any], sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    workload = f"FAISS, {len(vectors)} documents"
    flat = load_faiss().IndexFlatL2(vectors.shape[1])
    store = _faiss_store(flat, vectors)
    fast = accelerate(store, accelerator=accelerator)
    with closing(Batcher(partial(_together, store), sizes.callers)) as batcher:
        arms = {
            PLAIN: Arm(partial(_unscored, store)),
            ONE_THREAD: Arm(partial(_on_one_thread, store)),
            BATCHED: Arm(lambda vector, _: batcher.invoke(vector)),
            OURS: Arm(partial(_unscored, fast)),
        }
        loads = _loads(arms, queries, sizes)
        times = _one_by_one(arms, queries, sizes.turns * 20)
    many, one = f"{workload}, {sizes.callers} threads", f"{workload}, one caller"
    plain = (PLAIN, ONE_THREAD)
    alone[one] = _lone(times, min(plain, key=lambda name: median(times[name])))
    rows = [
        *_load_rows(loads, many),
        *_time_rows(times, one),
    ]
    rates = _rates(loads)
    return rows, {
        "faiss_vs_micro_batcher_64": _ratio(rates[BATCHED], rates[OURS]),
        "faiss_vs_plain_64": min(_ratio(rates[name], rates[OURS]) for name in plain),
        "faiss_vs_plain_1": max(_ratio(times[name], times[OURS]) for name in plain),
    }


def _faiss_in_clusters(
    vectors: Any, queries: Sequence[Any], sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    workload = f"FAISS in clusters, {len(vectors)} documents"
    dimension = vectors.shape[1]
    index = load_faiss().IndexIVFFlat(load_faiss().IndexFlatL2(dimension), dimension, CLUSTERS)
    index.nprobe = CLUSTERS // 2
    store = _faiss_store(index, vectors)
    fast = accelerate(store, accelerator=accelerator)
    arms = {PLAIN: Arm(partial(_unscored, store)), OURS: Arm(partial(_unscored, fast))}
    loads = _loads(arms, queries, sizes)
    rates = _rates(loads)
    ratio = _ratio(rates[PLAIN], rates[OURS])
    times = _one_by_one(arms, queries, sizes.turns * 20)
    many, one = f"{workload}, {sizes.callers} threads", f"{workload}, one caller"
    alone[one] = _lone(times, PLAIN)
    rows = [*_load_rows(loads, many), *_time_rows(times, one)]
    return rows, {"faiss_clusters_vs_plain_64": ratio}


def _loads(arms: Mapping[str, Arm], queries: Sequence[Any], sizes: Sizes) -> dict[str, list[Load]]:
    """Search with each arm from many threads, in turn."""
    runs = {
        name: lambda _, arm=arm: run_load(arm, queries, sizes.callers, "threads")
        for name, arm in arms.items()
    }
    return rotate(runs, sizes.turns)


def _load_rows(loads: Mapping[str, Sequence[Load]], workload: str) -> list[Row]:
    answers = {name: list(found[0].answers) for name, found in loads.items()}
    rows = [system_rows(name, workload, found, "searches_per_s") for name, found in loads.items()]
    return [*(row for some in rows for row in some), *_answer_rows(answers, workload)]


def _rates(loads: Mapping[str, Sequence[Load]]) -> dict[str, list[float]]:
    return {name: [load.throughput_rps for load in found] for name, found in loads.items()}


def _faiss_store(index: Any, vectors: Any) -> FAISS:
    index.train(vectors)
    index.add(vectors)
    names = [str(number) for number in range(len(vectors))]
    return FAISS(
        DeterministicFakeEmbedding(size=vectors.shape[1]),
        index,
        InMemoryDocstore({name: Document(name, id=name) for name in names}),
        dict(enumerate(names)),
    )


def _unscored(store: FAISS, vector: Any, k: int) -> Found:
    return [(document, 0.0) for document in store.similarity_search_by_vector(vector, k)]


def _on_one_thread(store: FAISS, vector: Any, k: int) -> Found:
    with thread_count(1):
        return _unscored(store, vector, k)


def _together(store: FAISS, vectors: Sequence[Any]) -> list[Found]:
    _, places = store.index.search(np.array(vectors, dtype=np.float32), K)
    return [[(_document(store, place), 0.0) for place in row] for row in places.tolist()]


def _document(store: FAISS, place: int) -> Any:
    return store.docstore.search(store.index_to_docstore_id[place])


# Both ------------------------------------------------------------------------------------------


def _one_by_one(
    arms: Mapping[str, Arm], queries: Sequence[Any], turns: int
) -> dict[str, list[float]]:
    """Return the seconds of each search of each arm, after some that do not count."""

    def search(arm: Arm, turn: int) -> float:
        started = time.perf_counter()
        arm.invoke(queries[turn % len(queries)])
        return time.perf_counter() - started

    for arm in arms.values():
        for turn in range(WARM_UP):
            search(arm, turn)
    return rotate({name: partial(search, arm) for name, arm in arms.items()}, turns)


def _lone(times: Mapping[str, Sequence[float]], plain: str) -> Pairs[float]:
    return Pairs(tuple(times[plain]), tuple(times[OURS])).map(in_ms)


def _ratio(below: Sequence[float], above: Sequence[float]) -> float:
    return median(ratios(Pairs(tuple(below), tuple(above))))


def _time_rows(times: Mapping[str, Sequence[float]], workload: str) -> list[Row]:
    return [
        row_of(name, workload, "latency_ms", [in_ms(one) for one in found])
        for name, found in times.items()
    ]


def _answer_rows(answers: Mapping[str, Sequence[Found]], workload: str) -> list[Row]:
    """Compare the answers of each arm with the plain ones."""
    rows = list[Row]()
    for name, found in answers.items():
        if name == PLAIN:
            continue
        pairs = list(zip(answers[PLAIN], found, strict=True))
        different = sum(_ids(plain) != _ids(other) for plain, other in pairs)
        worst = max(_difference(plain, other) for plain, other in pairs)
        rows.append(Row(name, workload, "different_documents", different, None, len(pairs)))
        rows.append(Row(name, workload, "max_score_difference", worst, None, len(pairs)))
    return rows


def _ids(found: Found) -> list[Any]:
    return [document.id for document, _ in found]


def _difference(plain: Found, other: Found) -> float:
    scores = zip(plain, other, strict=True)
    return max(abs(float(one) - float(two)) for (_, one), (_, two) in scores)
