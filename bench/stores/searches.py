"""Search stores on servers, plain and accelerated; run by ``bench.suites.remote_stores``."""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from langchain_chroma import Chroma
from langchain_core.embeddings import Embeddings

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.loads import p99_ratio, system_rows, throughput_ratio
from bench.measure import Pairs, rotate
from bench.paired import one_user, time_pairs
from bench.results import Row, SuiteResult, as_json, sizes_of
from bench.stores.servers import chroma_server
from bench.suites.remote_stores import Sizes
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel_demo.load import Load, Shape, run_load

K = 4
#: around which vectors lie, where each has some
CENTRES = 200
_PER_CENTRE = 20
#: vectors in a call of Chroma, which refuses more than 5,461
_BATCH = 5_000
#: threads that the plain store's callers wait for
POOLS = (8, 16)
OURS, OUR_TASKS = "accelerated", "accelerated, tasks"
CHROMA = "chroma"
#: the text whose search finds what is written
ASKED = "asked"

Found = list[tuple[Any, float]]

_logger = logging.getLogger("bench.remote_stores")


# What is searched --------------------------------------------------------------------------------


class Table(Embeddings):
    """Vectors by text: of documents, of queries, and of what is written, far from all of them.

    Whatever is written lies nearer to ``ASKED`` than ``K`` documents that were there before, each
    nearer than the one before.
    """

    def __init__(self, sizes: Sizes, documents: int) -> None:
        random = np.random.default_rng(documents)
        centres = random.normal(size=(min(CENTRES, documents // _PER_CENTRE), sizes.dimension))

        def near(count: int) -> Any:
            places = centres[random.integers(0, len(centres), count)]
            return places + random.normal(0, 0.5, (count, sizes.dimension))

        centre, *away = random.normal(size=(2, sizes.dimension))
        steps = np.linspace(0.5, 0.1, K + sizes.writes)
        apart = [centre + step * way for step, way in zip(steps, itertools.cycle(away))]
        self.documents = [f"document {number}" for number in range(documents)]
        self.queries = [f"query {number}" for number in range(sizes.searches)]
        self.written = [f"written {number}" for number in range(sizes.writes)]
        texts = [*self.documents, *self.queries, ASKED, *self.written]
        rows = [*near(documents - K), *apart[:K], *near(sizes.searches), centre, *apart[K:]]
        self._vectors = dict(zip(texts, np.array(rows, dtype=np.float32), strict=True))

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return the vectors of texts: [texts, dimension], float32."""
        return np.array([self._vectors[text] for text in texts])

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        return self.vectors(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return self._vectors[text].tolist()


def _id(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


def _chroma(table: Table, client: Any) -> Any:
    store = Chroma(f"texts_{len(table.documents)}", table, client=client)
    for start in range(0, len(table.documents), _BATCH):
        texts = table.documents[start : start + _BATCH]
        store.add_texts(texts, ids=[_id(text) for text in texts])
    return store


# Many callers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """A store's search, called as a chain is.

    Args:
        store: which is searched.
        shape: of the callers.
        pool: the threads that search, where callers do not do so themselves.
    """

    store: Any
    shape: Shape = "threads"
    pool: ThreadPoolExecutor | None = None

    def invoke(self, text: str) -> Found:
        """Return the nearest documents and their scores."""
        search = self.store.similarity_search_with_score
        return self.pool.submit(search, text, K).result() if self.pool else search(text, K)

    async def ainvoke(self, text: str) -> Found:
        """Return the nearest documents and their scores."""
        return await self.store.asimilarity_search_with_score(text, K)


def _plain_arms(store: Any, callers: int, opened: ExitStack) -> dict[str, Arm]:
    arms = {f"plain, {callers} threads": Arm(store), "plain, tasks": Arm(store, "tasks")}
    for count in (count for count in POOLS if count < callers):
        pool = opened.enter_context(ThreadPoolExecutor(count))
        arms[f"plain, {count} threads"] = Arm(store, "threads", pool)
    return arms


def _many(
    workload: str, store: Any, fast: Any, table: Table, sizes: Sizes, right: Sequence[Found]
) -> tuple[list[Row], float, float]:
    """Return rows, and the ratios of searches/s and of the 99th percentile to the best form's."""
    with ExitStack() as opened:
        ours = {OURS: Arm(fast), OUR_TASKS: Arm(fast, "tasks")}
        arms = {**_plain_arms(store, sizes.callers, opened), **ours}
        runs = {
            name: partial(_load, arm, table.queries, sizes.callers) for name, arm in arms.items()
        }
        rotate(runs, 1)
        loads = rotate(runs, sizes.turns)
    rows = list[Row]()
    for name, found in loads.items():
        rows += system_rows(name, workload, found, "searches_per_s")
        pairs = [pair for load in found for pair in zip(load.answers, right, strict=True)]
        rows.append(_different(name, workload, pairs))
    plain = [tuple(found) for name, found in loads.items() if name not in ours]
    pairs = [Pairs(found, tuple(loads[OURS])) for found in plain]
    return rows, min(map(throughput_ratio, pairs)), max(map(p99_ratio, pairs))


def _load(arm: Arm, queries: Sequence[str], callers: int, turn: int) -> Load:
    return run_load(arm, queries, callers, arm.shape)


def _different(system: str, workload: str, pairs: Sequence[tuple[Any, Any]]) -> Row:
    different = sum(found != right for found, right in pairs)
    return Row(system, workload, "different_answers", different, None, len(pairs))


def _shared(accelerator: Accelerator, workload: str) -> Iterator[Row]:
    """Give the mean number of searches in a call that searches shared; nothing if none did."""
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    for name, counts in engines.items():
        if name.startswith("store#") and (calls := counts["store_calls"]):
            mean = counts["searches_in_store_calls"] / calls
            yield Row(OURS, workload, "searches_per_call", mean, None, calls)


# While documents are written ----------------------------------------------------------------------


def _write(store: Any, table: Table, pause_s: float) -> list[Found]:
    """Write the documents one by one, and return what a search for them finds after each."""
    found = list[Found]()
    for text in table.written:
        time.sleep(pause_s)
        store.add_texts([text], ids=[_id(text)])
        found.append(store.similarity_search_with_score(ASKED, K))
    store.delete([_id(text) for text in table.written])
    return found


def _while_written(
    workload: str, arms: Mapping[str, Any], table: Table, sizes: Sizes, right: Sequence[Found]
) -> Iterator[Row]:
    """Search by many callers while one writes; compare with what was found one by one."""
    asked = _write(next(iter(arms.values())), table, 0)
    for system, store in arms.items():
        ended, started = threading.Event(), time.perf_counter()
        search = partial(_search_until, ended, store, table.queries, right)
        with ThreadPoolExecutor(sizes.callers) as pool:
            callers = pool.map(search, range(sizes.callers))
            try:
                written = _write(store, table, sizes.write_s)
            finally:
                ended.set()
            pairs = [pair for found in callers for pair in found]
        rate = len(pairs) / (time.perf_counter() - started)
        yield Row(system, workload, "searches_per_s", rate, None, len(pairs))
        yield _different(system, workload, [*pairs, *zip(written, asked, strict=True)])


def _search_until(
    ended: threading.Event, store: Any, queries: Sequence[str], right: Sequence[Found], first: int
) -> list[tuple[Found, Found]]:
    """Search from a first query on; return what was found, each with what is right."""
    pairs = list[tuple[Found, Found]]()
    while not ended.is_set():
        place = (first + len(pairs)) % len(queries)
        pairs.append((store.similarity_search_with_score(queries[place], K), right[place]))
    return pairs


# All ---------------------------------------------------------------------------------------------


def measure(sizes: Sizes, folder: Path) -> SuiteResult:
    """Measure in all sizes; the server keeps its data in ``folder``."""
    rows, ratios = list[Row](), dict[str, float]()
    with chroma_server(folder) as client:
        for documents in sizes.documents:
            table = Table(sizes, documents)
            store = _chroma(table, client)
            with bench_accelerator() as accelerator:
                more, found = _measure(store, table, sizes, accelerator)
            rows += more
            _logger.info("%d documents: %s", documents, found)
            for ratio, value in found.items():
                worse = min if ratio == f"{CHROMA}_64" else max
                ratios[ratio] = worse(value, ratios.get(ratio, value))
    wrong = too_many(rows, "different_answers")
    return SuiteResult("remote_stores", tuple(rows), ratios, sizes=sizes_of(sizes), wrong=wrong)


def _measure(
    plain: Any, table: Table, sizes: Sizes, accelerator: Accelerator
) -> tuple[list[Row], dict[str, float]]:
    workload = f"{CHROMA}, {len(table.documents)} documents"
    many = f"{workload}, {sizes.callers} callers"
    fast = accelerate(plain, accelerator=accelerator)
    right = [plain.similarity_search_with_score(text, K) for text in table.queries]
    retrievers = (store.as_retriever(search_kwargs={"k": K}) for store in (plain, fast))
    one_caller = f"{workload}, one caller"
    single = time_pairs(one_caller, *retrievers, table.queries, sizes.pairs, warm_up=10)
    rows, rate, p99 = _many(many, plain, fast, table, sizes, right)
    rows += [row for one in single for row in one.rows()]
    rows += _shared(accelerator, many)
    arms = {"plain": plain, OURS: fast}
    rows += _while_written(f"{many}, a write each second", arms, table, sizes, right)
    more, lone = one_user({one.workload: one.times_ms for one in single})
    slower = max(one.ratio for one in single)
    ratios = {f"{CHROMA}_64": rate, f"{CHROMA}_64_p99": p99, f"{CHROMA}_1": slower, **lone}
    return [*rows, *more], ratios


def main(asked: Path, result: Path) -> None:
    """Measure in the sizes that one file has, and write what was found into another."""
    logging.basicConfig(level=logging.WARNING, format="  %(message)s", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    given = json.loads(asked.read_text())
    sizes = Sizes(**{**given, "documents": tuple(given["documents"])})
    with tempfile.TemporaryDirectory() as folder:
        found = measure(sizes, Path(folder))
    result.write_text(json.dumps({**as_json(found), "wrong": found.wrong}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
