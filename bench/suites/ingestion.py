"""Measure how fast documents are embedded before they are indexed, against processes for it.

LangChain's ``HuggingFaceEmbeddings.embed_documents``, unchanged, is given all documents by one call
inside ``activate()``. The model is MiniLM; a document is 60 words of the sample corpus. The
opponents are the same call without us, in one process with all cores, and sentence-transformers'
own pool: a process a core with a thread each, started and warm before. All arms take turns over the
same documents, another one first each time, and must give the same vectors.

Ratios:
    ingestion_vs_pool: against sentence-transformers' multi-process pool: documents/s accelerated /
        pool; median over turns.
    ingestion_vs_plain: against the same call in one process: documents/s accelerated / plain;
        median over turns.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.answers import too_many
from bench.arms import bench_accelerator
from bench.baselines.embedding_runtimes import SAME
from bench.garbage import little_garbage
from bench.loads import counted
from bench.measure import Pairs, median, ratios, rotate
from bench.results import Row, SuiteResult, median_row, sizes_of
from bench.suites.embedding_concurrency import CHUNKS
from langchain_rag_accel import activate
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.sample import read_corpus
from rag_accel.system.processor import usable_cores
from rag_accel_demo.material import local_embeddings

OURS, PLAIN, POOL = "accelerated", "plain, one process", "sentence-transformers' pool"
RATE, DIFFERENCE = "documents_per_s", "max_abs_difference"
_PATIENCE_S, _WARM_UP = 120.0, 64
_logger = logging.getLogger("bench.ingestion")

Embed = Callable[[list[str]], Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: documents, the words of each, and turns."""

    documents: int = 10_000
    words: int = 60
    turns: int = 3


QUICK = Sizes(documents=500)
FULL = Sizes()


def run(quick: bool, sizes: Sizes | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    texts, plain = documents(chosen.documents, chosen.words), local_embeddings()
    with ExitStack() as stack:
        stack.enter_context(little_garbage())
        accelerator = stack.enter_context(bench_accelerator())
        pooled = stack.enter_context(_pool(plain))

        def accelerated(given: list[str]) -> Any:
            with activate(accelerator):
                return plain.embed_documents(given)

        arms: dict[str, Embed] = {PLAIN: plain.embed_documents, POOL: pooled, OURS: accelerated}
        for embed in arms.values():
            embed(texts[:_WARM_UP])
        wait_until_compiled(_PATIENCE_S)
        timed = {name: partial(_timed, embed, texts) for name, embed in arms.items()}
        found = rotate(timed, chosen.turns)
    workload = f"{counted(chosen.documents, 'document')} of {counted(chosen.words, 'word')}"
    rates = {name: [len(texts) / s for s, _ in turns] for name, turns in found.items()}
    rows = [median_row(name, workload, RATE, rate) for name, rate in rates.items()]
    wanted = found[PLAIN][0][1]
    for name in (POOL, OURS):
        most = max(float(np.abs(vectors - wanted).max()) for _, vectors in found[name])
        rows.append(Row(name, workload, DIFFERENCE, most, None, len(texts)))

    def gain(opponent: str) -> float:
        return median(ratios(Pairs(tuple(rates[opponent]), tuple(rates[OURS]))))

    gains = {"ingestion_vs_pool": gain(POOL), "ingestion_vs_plain": gain(PLAIN)}
    _logger.info("%s", gains)
    wrong = too_many(rows, DIFFERENCE, SAME)
    return SuiteResult("ingestion", tuple(rows), gains, sizes=sizes_of(chosen), wrong=wrong)


def documents(count: int, words: int) -> list[str]:
    """Return different texts of so many words, spread over the sample corpus."""
    corpus = " ".join(one.text for one in read_corpus(CHUNKS).documents).split()
    step = max(1, (len(corpus) - words) // count)
    return [" ".join(corpus[at * step :][:words]) for at in range(count)]


@contextmanager
def _pool(plain: Any) -> Iterator[Embed]:
    """Give the embedding of texts by a process a core, each with one thread."""
    model, before = plain._client, os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes, which begin now
    try:
        pool = model.start_multi_process_pool(["cpu"] * usable_cores())
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    try:
        yield lambda texts: model.encode(texts, pool=pool, show_progress_bar=False)
    finally:
        model.stop_multi_process_pool(pool)


def _timed(embed: Embed, texts: Sequence[str], _: int) -> tuple[float, Any]:
    began = time.perf_counter()
    vectors = embed(list(texts))
    seconds = time.perf_counter() - began
    return seconds, np.asarray(vectors, dtype=np.float32)
