"""Make large synthetic indexes, of which only what took long to compute is cached."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.index.contents import State
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.vectors import load_faiss

Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

TOPICS, PARTS = 250, 16  # clusters of clusters
PART_SPREAD, POINT_SPREAD = 0.7, 0.9
KMEANS_ROUNDS = 8
TRAINED_PER_CLUSTER = 40
CHUNK = 100_000
_FORMAT = 1  # of the cached files; raised when anything above changes

_logger = logging.getLogger("bench.vectors")


@dataclass(frozen=True, slots=True)
class Mixture:
    """Unit vectors around the parts of topics; later dimensions carry less.

    Args:
        centres: ``[parts, dim]``.
        spectrum: ``[dim]``; the spread along each dimension, ``i ** -0.5``.
    """

    centres: Vectors
    spectrum: Vectors

    def draw(self, count: int, seed: int) -> Vectors:
        """Return ``[count, dim], float32``; the same seed gives the same vectors."""
        random = np.random.default_rng((1, seed))
        vectors = random.standard_normal((count, len(self.spectrum)), dtype=np.float32)
        vectors *= np.float32(POINT_SPREAD) * self.spectrum
        vectors += self.centres[random.integers(0, len(self.centres), count)]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def make_mixture(dimension: int) -> Mixture:
    """Return the mixture of this dimension."""
    random = np.random.default_rng(0)
    spectrum = (np.arange(1, dimension + 1) ** -0.5).astype(np.float32)
    topics = random.standard_normal((TOPICS, dimension), dtype=np.float32)
    parts = random.standard_normal((TOPICS * PARTS, dimension), dtype=np.float32)
    centres = spectrum * (topics.repeat(PARTS, axis=0) + np.float32(PART_SPREAD) * parts)
    return Mixture(centres.astype(np.float32), spectrum)


@dataclass(frozen=True, slots=True)
class IndexSize:
    """How large an index is; all counts."""

    vectors: int
    clusters: int
    nprobe: int
    dimension: int = 256


def build_index(
    size: IndexSize, cache: Path, text: Callable[[int], str] = lambda number: ""
) -> DocumentIndex:
    """Return an index of a mixture; its clusters are found once and cached (4 bytes per vector).

    The vectors are drawn again each time, chunk by chunk, so that they are held only once.

    Args:
        size: of the index.
        cache: where clusters are kept.
        text: returns the text of a document by its number.
    """
    centroids, assignments = _clusters(size, cache)
    spec = IndexSpec(
        size.dimension,
        Metric.INNER_PRODUCT,
        IndexKind.IVF,
        num_clusters=size.clusters,
        nprobe=size.nprobe,
        train_size=size.vectors,
    )
    index = DocumentIndex(spec)
    index._state = State(IvfVectors(spec, centroids))  # a snapshot would hold all vectors twice
    for start, vectors in _chunks(size):
        end = start + len(vectors)
        documents = [Document(str(number), text(number), {}) for number in range(start, end)]
        index._make(index._state.putting(documents, vectors, assignments[start:end]))
    return index


def held_by(index: DocumentIndex) -> IvfVectors:
    """Return the vectors of an index with clusters; not to be changed."""
    with index.reading():
        vectors = index.view().vectors
    assert isinstance(vectors, IvfVectors), "an index without clusters"
    return vectors


def stock_index(index: DocumentIndex, nprobe: int, parallel_mode: int = 1) -> Any:
    """Return FAISS's own ``IndexIVFFlat`` over the lists of an index with clusters.

    Threads share the clusters of each query by default (``parallel_mode`` 1), which is never slower
    here; 0 is FAISS's own default. The lists are the same memory: not to be changed.
    """
    faiss = load_faiss()
    lists = held_by(index).faiss_index
    stock = faiss.IndexIVFFlat(lists.quantizer, lists.d, lists.nlist, lists.metric_type)
    stock.is_trained = True
    stock.replace_invlists(lists.invlists, False)
    stock.ntotal = lists.ntotal
    stock.parallel_mode = parallel_mode
    stock.nprobe = nprobe
    # FAISS's own way to keep alive what an index points to and does not own.
    stock.referenced_objects = [lists, index]
    return stock


def _clusters(size: IndexSize, cache: Path) -> tuple[Vectors, Labels]:
    name = f"bench-{_FORMAT}-{size.vectors}x{size.dimension}-{size.clusters}.npz"
    path = cache / name
    if path.is_file():
        with np.load(path) as saved:
            return saved["centroids"], saved["assignments"].astype(np.int64)
    _logger.info("%s: looking for %d clusters, once", path, size.clusters)
    centroids = _train(size)
    faiss = load_faiss()
    quantizer = faiss.IndexFlatIP(size.dimension)
    quantizer.add(centroids)
    found = [quantizer.search(vectors, 1)[1][:, 0] for _, vectors in _chunks(size)]
    assignments = np.concatenate(found).astype(np.int32)
    cache.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npz")  # a run that is interrupted leaves no half file
    np.savez(partial, centroids=centroids, assignments=assignments)
    partial.replace(path)
    return centroids, assignments.astype(np.int64)


def _train(size: IndexSize) -> Vectors:
    count = min(size.vectors, TRAINED_PER_CLUSTER * size.clusters)
    kmeans = load_faiss().Kmeans(
        size.dimension,
        size.clusters,
        niter=KMEANS_ROUNDS,
        seed=1,
        spherical=True,
        min_points_per_centroid=1,
        max_points_per_centroid=TRAINED_PER_CLUSTER,
    )
    kmeans.train(make_mixture(size.dimension).draw(count, size.vectors))
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)


def _chunks(size: IndexSize) -> Iterator[tuple[int, Vectors]]:
    mixture = make_mixture(size.dimension)
    for start in range(0, size.vectors, CHUNK):
        yield start, mixture.draw(min(CHUNK, size.vectors - start), start)
