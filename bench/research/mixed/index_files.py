"""Build the large index once, keep its parts on disk, and give every system the same vectors.

On disk are the vectors, their centroids and who lies in which cluster. From these come a
``DocumentIndex``, stock FAISS indexes that share *its* inverted lists (one copy of the vectors in
memory, and both sides read the same bytes), and a stock IVF with 8-bit scalar quantisation, whose
candidates are refined by the vectors.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.corpus import (
    PASSAGE_WORDS,
    PER_COMPONENT,
    RANK,
    SEED,
    Floats,
    Mixture,
    Numbers,
    Passages,
    Projection,
    corpus_blocks,
)
from bench.vectors import stock_index
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric
from rag_accel.engines.retrieval.index.store import IndexSnapshot, TrainedClusters
from rag_accel.engines.retrieval.vectors.spec import IndexKind
from rag_accel.engines.retrieval.vectors.vectors import load_faiss
from rag_accel.errors import ConfigError

TRAIN_PER_CLUSTER = 40
KMEANS_ROUNDS = 10
REFINED = 4
_BLOCK = 100_000
_DONE = "size.json"

_logger = logging.getLogger("bench.mixed")


@dataclass(frozen=True, slots=True)
class IndexSize:
    """How large an index is and how it is searched.

    Args:
        vectors: how many; the first are real.
        clusters: of the IVF.
        nprobe: clusters a search visits.
        dimension: components of a vector.
        passage_words: most words of a passage in a prompt.
    """

    vectors: int
    clusters: int
    nprobe: int
    dimension: int = 256
    passage_words: int = PASSAGE_WORDS


@dataclass(frozen=True, slots=True)
class LargeIndex:
    """An index in memory, for every system alike."""

    size: IndexSize
    documents: DocumentIndex
    projection: Projection
    texts: tuple[str, ...]
    sources: Numbers
    folder: Path

    def text(self, label: int) -> str:
        """Return the text of a vector."""
        return self.texts[self.sources[label]]

    def stock_index(self, parallel_mode: int) -> Any:
        """Return a FAISS ``IndexIVFFlat`` over the lists of ``documents``, not to be changed."""
        return stock_index(self.documents, self.size.nprobe, parallel_mode)

    def refined_index(self, parallel_mode: int) -> Any:
        """Return FAISS's own IVF of 8-bit residuals, whose best candidates are compared in float32.

        ``REFINED`` times as many candidates as are wanted come from the lists; the vectors they are
        compared with stay in their file, which the system keeps in memory.
        """
        faiss = load_faiss()

        coded = faiss.read_index(str(self._made("sq8.faiss", _quantised)))
        coded.parallel_mode = parallel_mode
        coded.nprobe = self.size.nprobe
        flat = faiss.read_index(str(self._made("flat.faiss", _flat)), faiss.IO_FLAG_MMAP_IFC)
        index = faiss.IndexRefine(coded, flat)
        index.k_factor = REFINED
        # FAISS's own way to keep alive what an index points to and does not own.
        index.referenced_objects = [coded, flat]
        return index

    def _made(self, name: str, make: Callable[[Path], Any]) -> Path:
        """Return a file with a FAISS index, after making it if it is not there."""
        path = self.folder / name
        if not path.is_file():
            _logger.info("writing %s, once", path)
            partial = path.with_suffix(".partial")  # a run that is interrupted leaves no half file
            load_faiss().write_index(make(self.folder), str(partial))
            partial.replace(path)
        return path


def open_index(cache: Path, passages: Passages, size: IndexSize) -> LargeIndex:
    """Load the index of this size, after making its files if they are not there.

    Raises:
        ConfigError: if there are fewer vectors than clusters, or fewer passages than dimensions.
    """
    if not 1 <= size.nprobe <= size.clusters <= size.vectors:
        raise ConfigError(
            "bad size of an index", found=size, valid="nprobe <= clusters <= vectors, from 1"
        )
    made = f"{len(passages.texts)}-{size.vectors}x{size.dimension}-ivf{size.clusters}"
    folder = cache / f"mixture-{made}"
    if not (folder / _DONE).is_file():
        _build(folder, passages, size)
    started = time.monotonic()
    texts = tuple(" ".join(text.split()[: size.passage_words]) for text in passages.texts)
    sources: Numbers = np.load(folder / "sources.npy")
    index = _document_index(folder, size, texts, sources)
    _logger.info("loaded %d vectors in %.0f s", len(index), time.monotonic() - started)
    projection = Projection(np.load(folder / "axes.npy"))
    return LargeIndex(size, index, projection, texts, sources, folder)


def _document_index(
    folder: Path, size: IndexSize, texts: tuple[str, ...], sources: Numbers
) -> DocumentIndex:
    spec = IndexSpec(
        size.dimension,
        Metric.INNER_PRODUCT,
        IndexKind.IVF,
        num_clusters=size.clusters,
        nprobe=size.nprobe,
        train_size=size.vectors,
    )
    no_metadata: dict[str, Any] = {}  # one for all: millions of empty ones would fill memory
    documents = tuple(
        Document(str(label), texts[source], no_metadata)
        for label, source in enumerate(sources.tolist())
    )
    vectors = np.asarray(np.load(folder / "vectors.npy", mmap_mode="r"))
    clusters = TrainedClusters(
        np.load(folder / "centroids.npy"), np.load(folder / "assignments.npy")
    )
    return DocumentIndex.from_snapshot(IndexSnapshot(spec, documents, vectors, clusters))


def _build(folder: Path, passages: Passages, size: IndexSize) -> None:
    """Write the files of an index; ``size.json`` comes last and says that all are there."""
    _logger.info("making an index of %d vectors in %s, once", size.vectors, folder)
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    projection = Projection.fit(passages.vectors, size.dimension)
    real = projection.apply(passages.vectors)
    rank = min(RANK, size.dimension - 1)
    mixture = Mixture.fit(real, max(1, len(real) // PER_COMPONENT), rank)
    vectors = np.lib.format.open_memmap(
        folder / "vectors.npy", "w+", np.float32, (size.vectors, size.dimension)
    )
    sources = np.empty(size.vectors, dtype=np.int64)
    start = 0
    for block, block_sources in corpus_blocks(real, mixture, size.vectors):
        end = start + len(block)
        vectors[start:end], sources[start:end] = block, block_sources
        start = end
    _logger.info("drew the vectors in %.0f s", time.monotonic() - started)
    centroids = _train(vectors, size.clusters)
    _logger.info("trained after %.0f s", time.monotonic() - started)
    assignments = _assign(vectors, centroids)
    vectors.flush()
    np.save(folder / "sources.npy", sources)
    np.save(folder / "axes.npy", projection.axes)
    np.save(folder / "centroids.npy", centroids)
    np.save(folder / "assignments.npy", assignments)
    (folder / _DONE).write_text(json.dumps({"vectors": size.vectors}), encoding="utf-8")
    _logger.info("made the index in %.0f s", time.monotonic() - started)


def _train(vectors: Floats, clusters: int) -> Floats:
    faiss = load_faiss()

    step = max(1, len(vectors) // (TRAIN_PER_CLUSTER * clusters))
    sample = np.ascontiguousarray(vectors[::step])
    kmeans = faiss.Kmeans(
        sample.shape[1],
        clusters,
        niter=KMEANS_ROUNDS,
        seed=SEED,
        spherical=True,
        min_points_per_centroid=1,
    )
    kmeans.train(sample)
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)


def _assign(vectors: Floats, centroids: Floats) -> Numbers:
    faiss = load_faiss()

    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    parts = [
        quantizer.search(np.ascontiguousarray(vectors[start : start + _BLOCK]), 1)[1][:, 0]
        for start in range(0, len(vectors), _BLOCK)
    ]
    return np.concatenate(parts)


def _flat(folder: Path) -> Any:
    faiss = load_faiss()

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    index = faiss.IndexFlatIP(vectors.shape[1])
    for start in range(0, len(vectors), _BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    return index


def _quantised(folder: Path) -> Any:
    faiss = load_faiss()

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    centroids = np.load(folder / "centroids.npy")
    assignments: Numbers = np.load(folder / "assignments.npy")
    count, dimension = vectors.shape
    quantizer = faiss.IndexFlatIP(dimension)
    quantizer.add(centroids)
    kind = faiss.ScalarQuantizer.QT_8bit
    metric = faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(quantizer, dimension, len(centroids), kind, metric)
    index.train(np.ascontiguousarray(vectors[:: max(1, count // _BLOCK)]))
    pointer = faiss.swig_ptr
    for start in range(0, count, _BLOCK):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK])
        labels = np.arange(start, start + len(block), dtype=np.int64)
        clusters = assignments[start : start + len(block)]
        index.add_core(len(block), pointer(block), pointer(labels), pointer(clusters))
    return index
