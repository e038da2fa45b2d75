"""Measure how many texts per second concurrent threads get embedded, plain and accelerated.

Each thread calls ``embed_query`` of LangChain's ``HuggingFaceEmbeddings`` (MiniLM), the next text
as soon as it has a vector. The texts are distinct questions of 8 to 25 words about real documents;
nothing is cached or shared. Arms take turns run by run over the same texts; at each number of
threads the plain arm runs with the number of torch threads that serves it best there, the
accelerated one as the process is by itself.

Ratios:
    embedding_throughput_64: texts/s accelerated / texts/s plain at 64 threads; median over pairs
        of runs.
    embedding_p99_64: 99th percentile of the latency of one call accelerated / plain at 64 threads,
        each within a run; median over pairs of runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.arms import at_threads, bench_accelerator, best_torch_threads
from bench.loads import batch_rows, counted, load_rows, p99_ratio, throughput_ratio
from bench.measure import Pairs, alternate
from bench.results import Row, SuiteResult
from langchain_rag_accel import accelerate
from langchain_rag_accel.demo.load import Load, run_load
from langchain_rag_accel.demo.material import local_embeddings
from rag_accel.sample import make_questions, read_corpus

_logger = logging.getLogger("bench.embedding_concurrency")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        threads: numbers of concurrent callers, rising; the ratios are those of the last.
        texts: distinct texts of one run, for each of them.
        tuning_texts: texts of a run that looks for the best number of torch threads.
        repeats: pairs of runs.
    """

    threads: tuple[int, ...]
    texts: tuple[int, ...]
    tuning_texts: int
    repeats: int


CHUNKS = 3000
QUICK = Sizes((1, 4, 16, 64), (96, 192, 384, 768), 128, 3)
FULL = Sizes((1, 4, 16, 64), (256, 512, 1024, 1024), 256, 7)


class EmbedQuery:
    """Let an embeddings object be loaded as a chain: text in, vector out."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings = embeddings

    def invoke(self, text: str) -> list[float]:
        """Embed one text."""
        return self._embeddings.embed_query(text)


def run(
    quick: bool,
    sizes: Sizes | None = None,
    embeddings: Any | None = None,
    texts: Sequence[str] | None = None,
) -> SuiteResult:
    """Measure; by default MiniLM, in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    found = distinct_texts(max(chosen.texts)) if texts is None else texts
    plain = local_embeddings() if embeddings is None else embeddings
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    with bench_accelerator() as accelerator:
        arms = EmbedQuery(plain), EmbedQuery(accelerate(plain, accelerator=accelerator))
        # Also makes the engine, under the settings the process has by itself.
        for arm in arms:
            run_load(arm, found[:16], 4, "threads")
        batch_rows(accelerator, "warm-up")
        for threads, count in zip(chosen.threads, chosen.texts, strict=True):
            pairs = _level(*arms, found[:count], threads, chosen)
            workload = counted(threads, "thread")
            rows += load_rows(pairs, workload, "texts_per_s")
            rows += [*batch_rows(accelerator, workload), _difference(pairs, workload)]
            ratios = {
                f"embedding_throughput_{threads}": throughput_ratio(pairs),
                f"embedding_p99_{threads}": p99_ratio(pairs),
            }
            _logger.info("%s: %s", workload, ratios)
    return SuiteResult("embedding_concurrency", tuple(rows), ratios)


def distinct_texts(count: int, chunks: int = CHUNKS) -> tuple[str, ...]:
    """Return up to ``count`` distinct questions of 8 to 25 words about ``chunks`` documents."""
    return tuple(one.text for one in make_questions(read_corpus(chunks).documents, count))


def _level(
    plain: EmbedQuery, fast: EmbedQuery, texts: Sequence[str], threads: int, sizes: Sizes
) -> Pairs[Load]:
    asked = texts[: sizes.tuning_texts]
    best = best_torch_threads(lambda: run_load(plain, asked, threads, "threads").throughput_rps)
    _logger.info("%d threads: plain runs best on %d torch threads", threads, best)
    return alternate(
        at_threads(best, lambda _: run_load(plain, texts, threads, "threads")),
        lambda _: run_load(fast, texts, threads, "threads"),
        sizes.repeats,
    )


def _difference(pairs: Pairs[Load], workload: str) -> Row:
    """Return the largest difference of any component of any vector of a pair of runs."""
    differences = [
        float(np.abs(np.asarray(plain) - np.asarray(fast)).max())
        for one, other in zip(pairs.plain, pairs.other, strict=True)
        for plain, fast in zip(one.answers, other.answers, strict=True)
    ]
    metric, n = "max_abs_difference", len(differences)
    return Row("accelerated - plain", workload, metric, max(differences), None, n)
