"""FAISS's own 8-bit lists with refine: ``IndexIVFScalarQuantizer`` under ``IndexRefineFlat``.

It scans 8-bit codes of what is left of each vector without its centroid, fetches ``k_factor * k``
and sorts those by their float32 vectors. Nothing proves its ids: with ``K_FACTOR`` 3,999 of 4,000
queries had those of FAISS's own float32 search of the same lists, with 1.5 3,996, and with 3 no
more than with 2. The suite ``ablation`` compares its ids with ours.

Where its quantiser's numbers lie in memory is chance, and a search may take a fifth longer for it:
here they lie well, as in ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.vectors import Labels, Vectors, held_by
from rag_accel.engines.retrieval import DocumentIndex
from rag_accel.engines.retrieval.vectors.cluster_lists import made_aligned
from rag_accel.engines.retrieval.vectors.vectors import faiss_metric, load_faiss

K_FACTOR = 2.0
OVER_CLUSTERS, OVER_QUERIES = 1, 0  # FAISS's numbers of what its threads share
MOST_OVER_CLUSTERS = 4  # queries of a call from which on sharing the queries was the faster
TRAINED_EACH = 20  # one of so many vectors tells the ranges of the numbers
CHUNK = 100_000


class FaissCoded:
    """The vectors of an index with clusters, searched by FAISS alone. Not to be changed meanwhile.

    The clusters are those of the index, so both sides visit the same. The vectors are copied once
    more, in the order of their labels, as ``IndexRefineFlat`` holds them.

    Args:
        index: whose vectors and clusters to take.
        k_factor: how many times ``k`` is fetched and refined.
    """

    def __init__(self, index: DocumentIndex, k_factor: float = K_FACTOR) -> None:
        faiss = load_faiss()
        held = held_by(index)
        labels, clusters = held.assignments()
        assert np.array_equal(labels, np.arange(len(labels))), "labels are to be row numbers"
        metric = faiss_metric(faiss, held.metric)
        quantizer = faiss.IndexFlat(held.dimension, metric)
        quantizer.add(held.centroids)

        def make() -> Any:
            return faiss.IndexIVFScalarQuantizer(
                quantizer,
                held.dimension,
                held.num_clusters,
                faiss.ScalarQuantizer.QT_8bit,
                metric,
                True,
            )

        trained = make()
        trained.train(held.gather(labels[::TRAINED_EACH]))

        def again() -> Any:
            index = make()
            index.sq.trained = trained.sq.trained
            index.is_trained = True
            return index

        self.ranges = faiss.vector_to_array(trained.sq.trained).reshape(2, held.dimension)
        self.lists = made_aligned(again)
        self.flat = faiss.IndexFlat(held.dimension, metric)
        pointer = faiss.swig_ptr
        for start in range(0, len(labels), CHUNK):
            part = labels[start : start + CHUNK]
            vectors, assigned = held.gather(part), np.ascontiguousarray(clusters[start:][:CHUNK])
            self.lists.add_core(len(part), pointer(vectors), pointer(part), pointer(assigned))
            self.flat.add(vectors)
        self._refined = faiss.IndexRefine(self.lists, self.flat)
        self._refined.k_factor = k_factor
        self.lists.referenced_objects = [quantizer]  # FAISS points to it without owning it

    def search(self, queries: Vectors, k: int, nprobe: int) -> tuple[Vectors, Labels]:
        """Return scores and labels, ``[n, k]`` each, threads shared the way that is the faster."""
        is_few = len(queries) < MOST_OVER_CLUSTERS
        self.lists.parallel_mode = OVER_CLUSTERS if is_few else OVER_QUERIES
        self.lists.nprobe = nprobe
        return self._refined.search(queries, k)
