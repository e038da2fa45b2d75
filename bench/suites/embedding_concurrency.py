"""Measure how many texts per second concurrent callers get embedded, by us and by the opponents.

Each caller embeds one text a call, the next as soon as it has a vector, from threads and from tasks
of one loop. Plain is LangChain's ``HuggingFaceEmbeddings`` (MiniLM on torch). With the most callers
the opponents take part: torch, ONNX Runtime and OpenVINO, each unbatched, behind a semaphore and
behind a micro-batcher, and infinity-emb, each with committed settings
(``bench/baselines/embedding.json``; ``--set tune=1`` looks for the best). The quick form leaves out
those on torch and behind semaphores, which others of them outrun. What is missing here is named as
row ``missing``. All arms take turns run by run over the same distinct questions of 8 to 25 words;
nothing is cached or shared, and one clock counts, the callers'. Our model is compiled before
anything counts, which takes some two seconds in the background. Of the two shapes the worse counts.

Every vector must be plain's within 1e-5, one of a server plain's own, every reranked order the
opponent's but for ties.

Ratios:
    embedding_vs_best_peer: against the fastest opponent (torch, ONNX Runtime or OpenVINO unbatched,
        behind a semaphore or a micro-batcher, or infinity-emb): texts/s ours / theirs
        with 64 callers; median over turns, the lower of both shapes.
    embedding_throughput_64: against plain (LangChain, torch, one text a call) at its best torch
        threads: texts/s accelerated / plain with 64 callers; median over turns, the lower of both
        shapes.
    embedding_p99_64: against plain (LangChain, torch, one text a call) at its best torch threads:
        99th percentile of a call accelerated / plain with 64 callers, each within a run; median
        over turns, the higher of both shapes.
    embedding_p99_16: against plain (LangChain, torch, one text a call) at its best torch threads:
        99th percentile of a call accelerated / plain with 16 callers, each over the calls of all
        runs; the higher of both shapes.
    embedding_p99_1: against plain (LangChain, torch, one text a call) at its best torch threads:
        99th percentile of a call accelerated / plain with one caller, each over the calls of all
        runs; the higher of both shapes.
    rerank_vs_plain: against the same late-interaction scorer on sentence-transformers and torch,
        unbatched, at its best torch threads: pairs/s of 64 callers, 16 passages of 60 words a call;
        median over pairs of runs.
    rerank_one_thread: against LangChain's CrossEncoderReranker (MiniLM with a random head, torch)
        where torch has one thread a call: pairs/s accelerated / plain, 16 callers in threads, 8
        passages of 60 words a call; median over pairs of runs.
    hosted_vs_plain: against the same LangChain ``OpenAIEmbeddings`` without us, on a scripted
        server that runs eight calls at the same time, 50 ms and 1 ms a text each: wall time plain /
        accelerated of 32 threads that embed one text each; median over pairs of runs.
    hosted_alone: against the same LangChain ``OpenAIEmbeddings`` without us, on that server: median
        time of a call accelerated / plain with one caller; median over pairs of runs.
    hosted_wide: against the same LangChain ``OpenAIEmbeddings`` without us, on that server where it
        runs 32 calls at the same time: wall time plain / accelerated of 32 threads that embed one
        text each; median over pairs of runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.baselines import embedding as opponents
from bench.baselines.embedding_runtimes import SAME
from bench.embedding import hosted, reranking
from bench.embedding.levels import OURS, PLAIN, Arms, EmbedQuery, Found, Level
from bench.embedding.precision import precision_rows
from bench.garbage import little_garbage
from bench.loads import p99_ratio, pooled_p99_ratio, throughput_ratio
from bench.measure import Pairs, median
from bench.results import Row, SuiteResult, sizes_of
from langchain_rag_accel import accelerate
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.errors import ConfigError
from rag_accel.sample import read_corpus
from rag_accel.system.processor import usable_cores
from rag_accel_demo import corpus_questions
from rag_accel_demo.load import Load, Shape, run_load
from rag_accel_demo.material import local_embeddings

CHUNKS = 3000
_PATIENCE_S = 60.0
_logger = logging.getLogger("bench.embedding_concurrency")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        callers: numbers of concurrent callers, rising; opponents take part in the last.
        texts: distinct texts of one run, for each of them.
        tuning_texts: texts of a run that looks for the best number of torch threads.
        repeats: turns.
        rerank: calls of a run that reranks; 0 for none.
        rerank_repeats: turns of these.
        hosted_repeats: turns on a server of embeddings; 0 for none.
        tune: whether the opponents' settings are looked for anew, and kept.
        fast_only: whether opponents are left out that others of them outrun: those on torch, and
            behind semaphores.
    """

    callers: tuple[int, ...]
    texts: tuple[int, ...]
    tuning_texts: int
    repeats: int
    rerank: int = 0
    rerank_repeats: int = 2
    hosted_repeats: int = 0
    tune: bool = False
    fast_only: bool = False


QUICK = Sizes((1, 16, 64), (64, 160, 192), 32, 3, rerank=64, hosted_repeats=5, fast_only=True)
FULL = Sizes(
    (1, 16, 64), (256, 1024, 1024), 256, 7, rerank=128, rerank_repeats=7, hosted_repeats=15
)


def configured(quick: bool, settings: Mapping[str, str]) -> Sizes:
    """Return the sizes with ``tune=1`` taken into account.

    Raises:
        ConfigError: on another setting.
    """
    chosen = QUICK if quick else FULL
    if settings.keys() - {"tune"} or settings.get("tune", "0") not in ("0", "1"):
        raise ConfigError(
            "unknown setting", where="embedding_concurrency", found=settings, valid="tune=0|1"
        )
    return replace(chosen, tune=settings.get("tune") == "1")


def run(
    quick: bool,
    sizes: Sizes | None = None,
    embeddings: Any | None = None,
    texts: Sequence[str] | None = None,
) -> SuiteResult:
    """Measure; by default MiniLM, in the sizes that ``quick`` stands for.

    Embeddings that are given are compared with themselves, accelerated, alone.
    """
    chosen = sizes or (QUICK if quick else FULL)
    asked = distinct_texts(max(chosen.texts)) if texts is None else texts
    plain = local_embeddings() if embeddings is None else embeddings
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(little_garbage())
        accelerator = stack.enter_context(bench_accelerator())
        arms = EmbedQuery(plain), EmbedQuery(accelerate(plain, accelerator=accelerator))
        # Also makes the engine, under the settings the process has by itself.
        for arm in arms:
            run_load(arm, asked[:16], 4, "threads")
        wait_until_compiled(_PATIENCE_S)
        others = _opponents(stack, plain, asked, chosen) if embeddings is None else {}
        for callers, count in zip(chosen.callers, chosen.texts, strict=True):
            is_last = callers == chosen.callers[-1]
            level = Level(
                *arms, accelerator, callers, asked[:count], chosen.tuning_texts, chosen.repeats
            )
            found, more = level.run(
                partial(_arms, others if is_last else {}, asked[:count], callers)
            )
            rows += more
            ratios |= _ratios(found, callers, is_last)
            _logger.info("%d callers: %s", callers, ratios)
        wanted = [one.answers for one in found["threads"][PLAIN]][-1]
    if embeddings is None:
        rows += _missing_rows(chosen)
        rows += precision_rows(plain, asked[: len(wanted)], wanted, callers, chosen.repeats)
    for found_ratios, more in _others(plain, chosen):
        ratios |= found_ratios
        rows += more
    wrong = (*too_many(rows, "max_abs_difference", SAME), *too_many(rows, "different_answers"))
    return SuiteResult(
        *("embedding_concurrency", tuple(rows), ratios),
        scripted="the server of hosted embeddings sleeps; the rest is real",
        sizes=sizes_of(chosen),
        wrong=wrong,
    )


def _others(plain: Any, sizes: Sizes) -> Iterator[tuple[dict[str, float], list[Row]]]:
    """Measure what is no level: reranking, and a server of embeddings."""
    if sizes.rerank:
        rerank = reranking.Sizes(16, sizes.callers[-1], sizes.rerank, sizes.rerank_repeats)
        documents = [one.text for one in read_corpus(CHUNKS).documents]
        ratio, rows = reranking.rerank(plain._client, documents, rerank)
        yield {"rerank_vs_plain": ratio}, rows
        rerank = reranking.Sizes(8, 16, sizes.rerank // 4, sizes.rerank_repeats)
        ratio, rows = reranking.rerank_on_one_thread(plain.model_name, documents, rerank)
        yield {"rerank_one_thread": ratio}, rows
    if sizes.hosted_repeats:
        of_server = hosted.Sizes(repeats=sizes.hosted_repeats)
        yield hosted.hosted(distinct_texts(of_server.callers), of_server)


def distinct_texts(count: int, chunks: int = CHUNKS) -> tuple[str, ...]:
    """Return up to ``count`` distinct questions of 8 to 25 words about ``chunks`` documents."""
    return tuple(one.text for one in corpus_questions(read_corpus(chunks).documents, count))


def _opponents(
    stack: ExitStack, plain: Any, texts: Sequence[str], sizes: Sizes
) -> dict[str, opponents.Arm]:
    model, path = plain._client, plain.model_name
    missing = opponents.missing()
    present = [name for name in _wanted(sizes) if name not in missing]
    if sizes.tune:
        opponents.keep(
            {
                name: opponents.tuned(name, usable_cores(), model, path, texts, sizes.callers[-1])
                for name in present
            }
        )
    settings = opponents.committed()
    return {
        name: stack.enter_context(opponents.arm(name, settings[name], model, path))
        for name in present
    }


def _arms(
    others: Mapping[str, opponents.Arm], texts: Sequence[str], callers: int, shape: Shape
) -> Arms:
    def run(arm: opponents.Arm, turn: int) -> Load:
        return arm.run(texts, callers, shape)

    return {name: partial(run, arm) for name, arm in others.items()}


def _wanted(sizes: Sizes) -> list[str]:
    """Return the opponents that take part."""
    slow = ("torch", "semaphore") if sizes.fast_only else ()
    return [name for name in opponents.names() if not any(word in name for word in slow)]


def _missing_rows(sizes: Sizes) -> list[Row]:
    missing, wanted = opponents.missing(), _wanted(sizes)
    return [Row(one, missing[one], "missing", 1, None, 1) for one in wanted if one in missing]


def _ratios(found: Mapping[Shape, Found], callers: int, is_last: bool) -> dict[str, float]:
    pairs = [Pairs(tuple(one[PLAIN]), tuple(one[OURS])) for one in found.values()]
    if not is_last:
        return {f"embedding_p99_{callers}": max(map(pooled_p99_ratio, pairs))}
    ratios = {
        f"embedding_throughput_{callers}": min(map(throughput_ratio, pairs)),
        f"embedding_p99_{callers}": max(map(p99_ratio, pairs)),
    }
    against = [_against_best(one) for one in found.values() if len(one) > len((PLAIN, OURS))]
    return {"embedding_vs_best_peer": min(against), **ratios} if against else ratios


def _against_best(found: Found) -> float:
    """Return our rate / that of the opponent that is the fastest in the median."""
    rates = {
        name: median([load.throughput_rps for load in loads])
        for name, loads in found.items()
        if name not in (PLAIN, OURS)
    }
    best = max(rates, key=lambda name: rates[name])
    return throughput_ratio(Pairs(tuple(found[best]), tuple(found[OURS])))
