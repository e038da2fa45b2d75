"""Rerank passages for many callers: by our engine, and by the same scorer as one would write it.

Both score by late interaction over MiniLM's token vectors: the mean over the query's tokens of the
largest cosine to any token of the passage. The opponent is sentence-transformers on torch, called
by each caller for itself. A cross-encoder in LangChain's reranker is its own opponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_core.documents import Document as ChainDocument

from bench.arms import bench_accelerator, best_torch_threads
from bench.embedding.levels import workload_of
from bench.measure import Pairs, alternate, median, ratios
from bench.results import Row, median_row
from langchain_rag_accel import accelerate
from rag_accel.accelerator import Accelerator
from rag_accel.engine_api import Document
from rag_accel.engines.embedding.compiled_model import wait_until_compiled
from rag_accel.engines.rerank.engine import RerankEngine
from rag_accel.engines.rerank.max_sim import MaxSimScorer
from rag_accel.graph import END, START, RAGraph
from rag_accel_demo.load import Load, run_load, torch_threads

PLAIN, OURS = "late interaction on torch", "accelerated reranker"
WORDS = 60
#: Scores nearer than this may change places.
TIE = 1e-5
_PATIENCE_S = 60.0
#: Calls of a run that looks for the best number of torch threads.
_TUNING = 8

Ranked = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is reranked: passages of one call, callers, calls of a run, pairs of runs."""

    passages: int
    callers: int
    calls: int
    repeats: int


class LateInteraction:
    """A scorer of passages by sentence-transformers alone."""

    def __init__(self, model: Any, passages: Sequence[Sequence[str]]) -> None:
        self._model = model
        self._passages = passages

    def invoke(self, question: str) -> Ranked:
        """Return the passages of a question ``number text`` with scores, the best first."""
        import torch

        number, _, query = question.partition(" ")
        texts = [query, *self._passages[int(number)]]
        found = self._model.encode(texts, output_value="token_embeddings", show_progress_bar=False)
        asked, *others = (torch.nn.functional.normalize(one, dim=-1) for one in found)
        scores = [float((asked @ one.T).amax(dim=1).mean()) for one in others]
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        return [(place, scores[place]) for place in order]


class OurReranker:
    """A scorer of passages by a graph of one stage."""

    def __init__(self, accelerator: Accelerator, passages: Sequence[Sequence[str]]) -> None:
        self._accelerator = accelerator
        self._passages = [
            tuple(Document(str(place), text) for place, text in enumerate(one)) for one in passages
        ]
        graph = RAGraph(("input", "documents")).add_rerank(
            "rank", documents="documents", engine="reranker"
        )
        self._graph = graph.add_edge(START, "rank").add_edge("rank", END)

    def invoke(self, question: str) -> Ranked:
        """Return the passages of a question ``number text`` with scores, the best first."""
        number, _, query = question.partition(" ")
        found = self._accelerator.run(
            self._graph, input=query, documents=self._passages[int(number)]
        )
        return [(int(one.document.id), one.score) for one in found]


class ChainReranker:
    """LangChain's reranker over a cross-encoder, plain or accelerated."""

    def __init__(self, reranker: Any, passages: Sequence[Sequence[str]]) -> None:
        self._reranker = reranker
        self._passages = [
            [ChainDocument(text, metadata={"place": place}) for place, text in enumerate(one)]
            for one in passages
        ]

    def invoke(self, question: str) -> list[int]:
        """Return the places of a question's passages, the best first."""
        number, _, query = question.partition(" ")
        found = self._reranker.compress_documents(self._passages[int(number)], query)
        return [one.metadata["place"] for one in found]


def rerank(model: Any, texts: Sequence[str], sizes: Sizes) -> tuple[float, list[Row]]:
    """Return pairs/s ours / the opponent's, and the rows that say it.

    Args:
        model: a ``SentenceTransformer``.
        texts: documents from which passages of ``WORDS`` words are cut, and questions taken.
        sizes: how much.
    """
    passages, questions = _material(texts, sizes)
    scorer = MaxSimScorer(model)
    with bench_accelerator() as accelerator:
        accelerator.add_engine("reranker", RerankEngine(scorer))
        plain, fast = LateInteraction(model, passages), OurReranker(accelerator, passages)
        load = partial(run_load, users=sizes.callers, shape="threads")
        load(fast, questions[:_TUNING])
        wait_until_compiled(_PATIENCE_S)
        load(fast, questions[:_TUNING])
        best = best_torch_threads(lambda: load(plain, questions[:_TUNING]).throughput_rps)
        pairs = alternate(
            lambda _: _on(best, lambda: load(plain, questions)),
            lambda _: load(fast, questions),
            sizes.repeats,
        )
    return median(ratios(pairs.map(lambda one: one.throughput_rps))), _rows(pairs, sizes)


def rerank_on_one_thread(path: str, texts: Sequence[str], sizes: Sizes) -> tuple[float, list[Row]]:
    """Return pairs/s of LangChain's reranker accelerated / plain, on one torch thread, and rows.

    Args:
        path: of a model of sentence-transformers, whose network with a random head is the
            cross-encoder.
        texts: as of ``rerank``.
        sizes: how much.
    """
    from langchain_community.cross_encoders import HuggingFaceCrossEncoder

    passages, questions = _material(texts, sizes)
    with torch_threads(1), bench_accelerator() as accelerator:
        options = {"device": "cpu", "num_labels": 1}
        model = HuggingFaceCrossEncoder(model_name=path, model_kwargs=options)
        reranker = CrossEncoderReranker(model=model, top_n=sizes.passages)
        plain = ChainReranker(reranker, passages)
        fast = ChainReranker(accelerate(reranker, accelerator=accelerator), passages)
        load = partial(run_load, users=sizes.callers, shape="threads")
        for arm in (plain, fast):
            load(arm, questions[: sizes.callers])
        pairs = alternate(
            lambda _: load(plain, questions), lambda _: load(fast, questions), sizes.repeats
        )
    return median(ratios(pairs.map(lambda one: one.throughput_rps))), _chain_rows(pairs, sizes)


def _on(threads: int, run: Any) -> Load:
    with torch_threads(threads):
        return run()


def _material(texts: Sequence[str], sizes: Sizes) -> tuple[list[list[str]], list[str]]:
    words = [word for text in texts for word in text.split()]
    needed = sizes.calls * sizes.passages
    step = max(1, (len(words) - WORDS) // needed)
    cut = [" ".join(words[start * step : start * step + WORDS]) for start in range(needed)]
    passages = [
        cut[call * sizes.passages : (call + 1) * sizes.passages] for call in range(sizes.calls)
    ]
    questions = [
        f"{call} {' '.join(own[len(own) // 2].split()[:12])}?" for call, own in enumerate(passages)
    ]
    return passages, questions


def _rows(pairs: Pairs[Load], sizes: Sizes) -> list[Row]:
    workload = f"{workload_of(sizes.callers, 'threads')}, {sizes.passages} passages a call"
    rows = [
        median_row(
            system,
            workload,
            "pairs_per_s",
            [sizes.passages * load.throughput_rps for load in loads],
        )
        for system, loads in ((PLAIN, pairs.plain), (OURS, pairs.other))
    ]
    compared = [
        _is_same(one, other)
        for plain, fast in zip(pairs.plain, pairs.other, strict=True)
        for one, other in zip(plain.answers, fast.answers, strict=True)
    ]
    different = len(compared) - sum(compared)
    return [*rows, Row(OURS, workload, "different_answers", different, None, len(compared))]


def _chain_rows(pairs: Pairs[Load], sizes: Sizes) -> list[Row]:
    workload = (
        f"{workload_of(sizes.callers, 'threads')}, {sizes.passages} passages a call, one thread"
    )
    systems = (("LangChain's reranker", pairs.plain), ("it accelerated", pairs.other))
    rows = [
        median_row(
            system,
            workload,
            "pairs_per_s",
            [sizes.passages * load.throughput_rps for load in loads],
        )
        for system, loads in systems
    ]
    # The scores of a random head are near each other: places may differ where they tie.
    compared = [
        one == other
        for plain, fast in zip(pairs.plain, pairs.other, strict=True)
        for one, other in zip(plain.answers, fast.answers, strict=True)
    ]
    different = len(compared) - sum(compared)
    return [
        *rows,
        Row("it accelerated", workload, "different_orders", different, None, len(compared)),
    ]


def _is_same(one: Ranked, other: Ranked) -> bool:
    """Tell whether both have the same order, but for scores that tie."""
    scores = dict(one)
    return scores.keys() == dict(other).keys() and bool(
        np.all(
            [
                mine == theirs or abs(scores[mine] - scores[theirs]) <= TIE
                for (mine, _), (theirs, _) in zip(one, other, strict=True)
            ]
        )
    )
