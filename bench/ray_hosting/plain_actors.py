"""What a user of Ray would write by hand: actors and a Serve deployment of plain functions."""

# Ray has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class PlainEmbedder:
    """sentence-transformers as it is.

    Args:
        model: a folder or name.
        threads: that torch computes on.
    """

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        self._model = SentenceTransformer(model, device="cpu")

    def encode(self, texts: list[str]) -> Vectors:
        """Return ``[texts, dim], float32``."""
        return np.asarray(self._model.encode(texts, batch_size=len(texts)))

    def nothing(self, value: object) -> object:
        """Return what was given."""
        return value


class PlainShard:
    """FAISS's flat index of a file of vectors.

    Args:
        file: of ``[rows, dim], float32``.
        first: the label of its first row.
        threads: that FAISS computes on.
    """

    def __init__(self, file: Path, first: int, threads: int) -> None:
        import faiss

        faiss.omp_set_num_threads(threads)
        vectors = np.load(file)
        self._first = first
        self._index: Any = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
        """Return scores and labels, ``[queries, k]`` each."""
        scores, labels = self._index.search(queries, k)
        return scores, labels + self._first


def merge(found: list[tuple[Vectors, npt.NDArray[np.int64]]], k: int) -> npt.NDArray[np.int64]:
    """Return the labels of the best ``k`` of all shards, ``[queries, k]``."""
    scores = np.concatenate([scores for scores, _ in found], axis=1)
    labels = np.concatenate([labels for _, labels in found], axis=1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(labels, best, axis=1)
